"""What is measured equals the cost table: vectors down and up in units of the model, gradients and forwards a step."""

import pytest
import torch
from federations import NAMES, network, train

import fedflat as ff

COST = {  # down, up, gradients, forwards
    "fedavg": (1, 1, 1, 0),
    "fedprox": (1, 1, 1, 0),
    "scaffold": (2, 2, 1, 0),
    "feddyn": (1, 1, 1, 0),
    "fedntd": (1, 1, 1, 1),
    "fedsam": (1, 1, 2, 0),
    "fedsol": (1, 1, 2, 1),
    "fednsam": (2, 1, 1, 0),
    "fedscar": (2, 1, 1, 0),
    "man": (1, 1, 1, 0),
    "fednova": (1, 1, 1, 0),
    "feddc": (2, 2, 1, 0),
    "fedavgm": (1, 1, 1, 0),
    "fedadam": (1, 1, 1, 0),
    "fedyogi": (1, 1, 1, 0),
    "fedadagrad": (1, 1, 1, 0),
    "fedcm": (2, 1, 1, 0),
    "fedacg": (1, 1, 1, 0),
    "moon": (1, 1, 1, 2),
    "fedgmt": (2, 1, 1, 1),
    "fedswa": (1, 1, 1, 0),
    "fedmoswa": (2, 2, 1, 0),
    "perfedavg": (1, 1, 2, 0),
    "fedbabu": (95 / 119, 95 / 119, 1, 0),  # the body's share: conv 30 and linear 65 of 119 numbers
    "local": (0, 0, 1, 0),
    "fedasam": (1, 1, 2, 0),
    "mofedsam": (2, 1, 2, 0),
    "fedgamma": (2, 2, 2, 0),
    "fedspeed": (1, 1, 2, 0),
    "fedsmoo": (2, 2, 2, 0),
    "fedlesam": (1, 1, 1, 0),
    "fedlesam-s": (2, 2, 1, 0),
    "fedlesam-d": (1, 1, 1, 0),
    "fedlesam(displacement=round)": (2, 1, 1, 0),
    "fedlesam-s(displacement=round)": (3, 2, 1, 0),
    "fedlesam-d(displacement=round)": (2, 1, 1, 0),
    "fedgloss": (1, 1, 2, 0),
    "fedgloss(rho_l=0.0)": (1, 1, 1, 0),
    "fedgloss(ramp=3)": (120 / 119, 1, 2, 0),  # the clients' radius beside the model's 119 numbers
    "fedwmsam": (239 / 119, 1, 1, 0),  # and a
    "fedgf": (239 / 119, 1, 2, 0),  # and c
    "fednsam(ascent=local)": (1, 1, 2, 0),
    "fedscar(ablation=scar2)": (1, 1, 1, 0),
    "fedscar(ablation=scarl)": (2, 1, 1, 0),
    "fedsam+man": (1, 1, 2, 0),
    "fedsam+scaffold": (2, 2, 2, 0),
    "fedsol(proximal=prox)": (1, 1, 1, 0),
    "fedsol(proximal=scaffold)": (2, 2, 1, 0),
    "fedsol(proximal=dyn)": (1, 1, 1, 0),
    "fedsol(proximal=moon)": (1, 1, 2, 2),
    "fedsol(proximal=nova)": (2, 1, 1, 0),
}


@pytest.mark.parametrize("engine", ["serial", "processes:2"])
@pytest.mark.parametrize("name", COST)
def test_measured_cost(name, engine):
    costs = train(name, engine=engine).costs
    assert (costs["down"], costs["up"], costs["gradients"], costs["forwards"]) == COST[name]


def test_every_algorithm_has_its_row():
    assert set(NAMES) <= set(COST)


def test_buffers_travel_with_the_model_and_count_as_part_of_it():
    result = train("fedavg", model=network(norm=True))
    assert result.costs["down"] == result.costs["up"] == 1.0
    model = sum(p.numel() for p in result.model.parameters())
    statistics = 3 + 3 + 1
    assert result.history[0]["bytes_down"] == 3 * 8 * (model + statistics)


class TrainsTheBody(ff.Part):
    server_keeps = server_sends = {"m": ff.vector}

    def trainable(self, layout):
        return lambda name: name not in layout.head


def test_frozen_tensors_neither_move_nor_travel():
    model = network()
    for frozen in model[0].parameters():
        frozen.requires_grad_(False)
    sizes = [p.numel() for p in model.parameters()]
    body = sum(sizes[2:4])
    costs = train(TrainsTheBody(), model=model).costs
    assert costs["up"] == body / sum(sizes)
    assert costs["down"] == 2 * body / sum(sizes)


def test_a_partial_perturbation_is_really_cheaper():
    """A third of a step is its forward pass: the head alone costs one more, and FedSoL's teacher another one."""
    shape = (1, 16, 16)
    clients = [(torch.randn(20, *shape), torch.arange(20) % 10)] * 2
    model = ff.models.build("cnn", shape, 10)

    def flops(expression: str) -> float:
        return ff.simulate(expression, model, clients, rounds=1, steps=1, device="cpu", engine="serial").costs["flops"]

    assert flops("fedsol(layers=head)") == pytest.approx(5 / 3, abs=0.03)
    assert flops("fedsol(layers=body)") == pytest.approx(7 / 3, abs=0.05)
    assert flops("fedsol") == pytest.approx(7 / 3, abs=0.05)


def test_flops_are_in_units_of_fedavg():
    assert train("fedavg").costs["flops"] == 1.0
    assert train("fedsam").costs["flops"] == 2.0
    assert 2.2 < train("fedsol").costs["flops"] < 2.5
    assert train("scaffold").costs["flops"] == 1.0
