"""AdamW in place of local SGD agrees with torch's own, and is refused where a method sums gradients."""

import ast
import copy
import inspect

import pytest
import torch
from federations import NAMES, SCHEDULE, SIZES, network, population, train
from torch import nn

import fedflat as ff
from fedflat.data import minibatches
from fedflat.seeds import generator


def textbook(weight_decay: float, clip: float | None, rho: float) -> torch.Tensor:
    """FedAvg, or FedSAM, with torch.optim.AdamW in every client."""
    server, clients = network(), population()
    for t, active in enumerate(SCHEDULE, 1):
        total = sum(SIZES[i] for i in active)
        mean = [torch.zeros_like(p) for p in server.parameters()]
        for i in active:
            model, (x, y) = copy.deepcopy(server), clients[i]
            optimiser = torch.optim.AdamW(model.parameters(), lr=0.02 * 0.9 ** (t - 1), weight_decay=weight_decay)
            for rows in minibatches(SIZES[i], 4, epochs=2, rng=generator(3, "batches", t, i)):
                parameters = list(model.parameters())
                here = [p.detach().clone() for p in parameters]
                for at in ("x", "x + e")[not rho :]:
                    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                    gradients = torch.autograd.grad(loss, parameters)
                    norm = torch.cat([g.flatten() for g in gradients]).norm()
                    with torch.no_grad():
                        for p, x_k, g in zip(parameters, here, gradients, strict=True):
                            p.copy_(x_k + rho * g / norm if at == "x" else x_k)
                for p, g in zip(parameters, gradients, strict=True):
                    p.grad = g * min(1.0, float(clip / norm)) if clip else g
                optimiser.step()
            for m, p in zip(mean, model.parameters(), strict=True):
                m += SIZES[i] / total * p.detach()
        with torch.no_grad():
            for p, m in zip(server.parameters(), mean, strict=True):
                p.copy_(m)
    return nn.utils.parameters_to_vector(server.parameters()).detach()


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("algorithm", "rho"), [("fedavg", 0.0), ("fedsam(rho=0.2)", 0.2)])
def test_adamw_is_torchs(algorithm, rho, weight_decay, clip):
    settings = {"optimizer": "adamw", "lr": 0.02, "momentum": 0.0, "weight_decay": weight_decay, "clip": clip}
    found = train(algorithm, **settings).vector
    torch.testing.assert_close(found, textbook(weight_decay, clip, rho), rtol=0, atol=1e-12)
    assert torch.equal(train(algorithm, engine="processes:2", **settings).vector, found)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_adamw_or_says_why_not(name):
    refused = any(part.assumes_sgd for part in ff.algorithms.parse(name).everyone)
    settings = {"optimizer": "adamw", "lr": 0.01, "momentum": 0.0, "rounds": 2}
    if refused:
        with pytest.raises(ff.FedflatError, match=r"needs SGD, .* takes a client's way for a sum of gradients"):
            train(name, **settings)
    else:
        assert train(name, **settings).vector.isfinite().all()


def test_a_part_that_divides_by_step_sizes_declares_that_it_assumes_sgd():
    for part in ff.Part.__subclasses__():
        if part.__module__.startswith("fedflat.algorithms"):
            tree = ast.parse(inspect.getsource(part))
            divides = any(isinstance(n, ast.Attribute) and n.attr in ("lr_sum", "reach") for n in ast.walk(tree))
            assert divides == part.assumes_sgd, part


def test_adamw_has_moments_of_its_own():
    with pytest.raises(ff.FedflatError, match=r"momentum = 0\.8: adamw has moments of its own"):
        train("fedavg", optimizer="adamw")
