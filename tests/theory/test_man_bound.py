"""MAN (WACV 2024, abstract): minimising the activations' norm reduces the top eigenvalue of the layer-wise Hessian.

With a linear head of weight V on activations a and half the squared error, the head's Hessian is the identity times the
second moment E[a a'], whatever the labels. Holds: its top eigenvalue is that of the second moment, at most E||a||^2
(half of it with cross-entropy), and training with `man` lowers both. Does not hold: that small activations flatten the
whole Hessian, "which in turn decreases the overall Hessian's top eigenvalue". A ReLU layer scaled by s and the next one
by 1/s compute the same function, with activations smaller by s and a top eigenvalue that grows without bound.
"""

import pytest
import torch
from quadratics import half_square
from torch import Tensor, nn

import fedflat as ff
from fedflat.core import Task
from fedflat.core.task import cross_entropy


def two_layers():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()


def clients(count=4, samples=20):
    """One-hot targets of a linear teacher, inputs shifted against each other."""
    g = torch.Generator().manual_seed(2)
    teacher = torch.randn(8, 3, generator=g, dtype=torch.float64)
    found = []
    for _ in range(count):
        x = torch.randn(samples, 8, generator=g, dtype=torch.float64) + torch.randn(8, generator=g, dtype=torch.float64)
        found.append((x, nn.functional.one_hot((x @ teacher).argmax(1), 3).double()))
    return found


X, Y = (torch.cat(parts) for parts in zip(*clients(), strict=True))


def flatness(model, loss=half_square, y=Y) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The head's Hessian, the activations' second moment and mean square, and the whole Hessian's top eigenvalue."""
    task = Task(model, loss, inside=True)
    hessian = torch.autograd.functional.hessian(
        lambda v: loss(task.forward(v, X, task.buffers).logits, y).mean(), task.vector, vectorize=True
    )
    a = task.forward(task.vector, X, task.buffers).activations[0].detach()
    head = task.layout.mask(task.layout.head.__contains__, task.vector).bool()
    return hessian[head][:, head], a.T @ a / len(a), a.square().sum(1).mean(), torch.linalg.eigvalsh(hessian)[-1]


def top(matrix):
    return torch.linalg.eigvalsh(matrix)[-1]


def test_the_heads_hessian_is_the_second_moment_of_the_activations():
    head, moment, norm, _ = flatness(two_layers())
    torch.testing.assert_close(head, torch.kron(torch.eye(3, dtype=torch.float64), moment), rtol=0, atol=1e-12)
    assert top(moment) < norm
    torch.testing.assert_close(norm, moment.trace(), rtol=1e-12, atol=0)


def test_with_cross_entropy_half_the_norm_bounds_it():
    head, _, norm, _ = flatness(two_layers(), cross_entropy, Y.argmax(1))
    assert 0.05 * norm < top(head) < norm / 2


@pytest.mark.parametrize("name", ["fedavg", "feddyn", "fedsam"])
def test_training_with_man_lowers_the_bound_and_the_heads_eigenvalue(name):
    found = {}
    for algorithm in (name, f"{name}+man(zeta=0.5)"):
        settings = {"rounds": 15, "steps": 5, "batch_size": None, "lr": 0.1, "loss": half_square}
        model = ff.simulate(algorithm, two_layers(), clients(), **settings, engine="serial", device="cpu").model
        head, _, norm, whole = flatness(model)
        found[algorithm] = top(head), norm, whole
    (plain, loose, rough), (quiet, tight, smooth) = found.values()
    assert quiet < 0.5 * plain
    assert tight < 0.5 * loose
    if name == "fedavg":  # 4.0 and 4.9: the whole Hessian's top eigenvalue rises, since the head grows
        assert smooth > 1.1 * rough


def test_smaller_activations_do_not_flatten_the_whole_hessian():
    eigenvalues, norms = [], []
    for s in (1.0, 0.1, 0.01):
        model = two_layers()
        with torch.no_grad():
            before = model(X)
            model[0].weight.mul_(s)
            model[0].bias.mul_(s)
            model[2].weight.div_(s)
            torch.testing.assert_close(model(X), before)
        _, _, norm, whole = flatness(model)
        norms.append(norm)
        eigenvalues.append(whole)
    assert norms[2] < 1e-3 * norms[0]
    assert eigenvalues[2] > 50 * eigenvalues[1] > 1000 * eigenvalues[0]
