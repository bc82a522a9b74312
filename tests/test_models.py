"""Models by name: they fit the data, have the published size, and draw their weights from the seed alone."""

import pytest
import torch
from torch import nn

from fedflat.errors import FedflatError
from fedflat.models import CNN, MLP, build, default, names


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_every_model_maps_images_to_logits_through_a_linear_head(name, shape):
    model = build(name, shape, classes=7)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)
    *_, head = (module for module in model.modules() if not list(module.children()))
    assert isinstance(head, nn.Linear)
    assert any(isinstance(module, nn.ReLU) for module in model.modules())


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_cnn_is_the_published_one():
    assert size(CNN(1, 28, 10)) == 1_663_370  # McMahan et al. (2017), section 3
    assert [tuple(m.weight.shape) for m in CNN(3, 32, 10) if isinstance(m, nn.Conv2d)] == [
        (32, 3, 5, 5),
        (64, 32, 5, 5),
    ]


def test_the_mlp_has_the_layers_it_is_told():
    assert size(MLP(64)) == 64 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10
    assert size(MLP(5, hidden=(), classes=3)) == 18


@pytest.mark.parametrize("name", names())
def test_weights_depend_on_the_seed_and_the_callers_generator_is_left_alone(name):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, other = build(name, (1, 8, 8), 10, seed=5), build(name, (1, 8, 8), 10, seed=6)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again = build(name, (1, 8, 8), 10, seed=5)
    for key, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[key])
        assert not torch.equal(weight, other.state_dict()[key])


@pytest.mark.parametrize(
    ("shape", "name"),
    [((1, 8, 8), "mlp"), ((3, 32, 32), "cnn"), ((1, 9, 9), "cnn"), ((1, 28, 20), "mlp"), ((40,), "mlp")],
)
def test_the_default_fits_the_data(shape, name):
    assert default(shape) == name
    assert build(default(shape), shape, 3)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("cn", (1, 8, 8), "no model is called 'cn'; known are mlp, cnn; the nearest is cnn"),
        ("CNN", (1, 8, 6), r"square images C,H,W of at least 4x4 pixels, not samples of shape \(1, 8, 6\)"),
        ("cnn", (1, 3, 3), "at least 4x4 pixels"),
        ("cnn", (64,), r"not samples of shape \(64,\)"),
    ],
)
def test_a_wrong_call_is_one_sentence(name, shape, sentence):
    with pytest.raises(FedflatError, match=sentence):
        build(name, shape, 10)
