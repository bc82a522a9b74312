"""Data sets, federations of them, and their way from pixels to numbers."""

from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits

from fedflat.data import Federation, channel_statistics, load, names, normalise, partition
from fedflat.errors import FedflatError


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def pixels(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_digits_are_all_of_scikit_learns_in_uint8(digits):
    published = load_digits()
    (x, y), (x_test, y_test) = digits.train, digits.test
    assert (x.shape, x_test.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
    assert torch.equal(y_test, torch.tensor(published.target[::5]))
    assert torch.equal(y[:5], torch.tensor(published.target[[1, 2, 3, 4, 6]]))
    assert (x_test.double() / 255 * 16 - torch.tensor(published.images[::5])[:, None]).abs().max() <= 16 / 255 / 2
    assert (int(x.min()), int(x.max())) == (0, 255)
    assert digits.classes == tuple("0123456789")


@pytest.mark.parametrize("name", ["Digits", "DIGITS", " digits", "dig-its"])
def test_spelling_is_forgiven(name, digits):
    assert torch.equal(load(name).train[0], digits.train[0])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("digts", "no data set is called 'digts'; known are digits, .*; the nearest is digits"),
        ("imagenet", "no data set is called 'imagenet'; known are digits, mnist, .*shakespeare"),
        (None, "no data set is called None"),
    ],
)
def test_an_unknown_name_is_one_sentence(name, sentence):
    with pytest.raises(FedflatError, match=sentence):
        load(name)


def test_the_names_are_those_of_the_papers():
    assert names() == [
        *("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "cinic10", "tiny-imagenet"),
        *("pathmnist", "tissuemnist", "ag-news", "shakespeare"),
    ]


def test_a_federation_is_a_sequence_of_its_clients_samples(digits):
    federation = Federation(digits, "shards:2", clients=20, seed=3)
    parts = partition(digits.train[1], "shards:2", clients=20, seed=3)
    assert len(federation) == len(list(federation)) == 20
    for (x, y), part in zip(federation, parts, strict=True):
        assert torch.equal(x, digits.train[0][part])
        assert torch.equal(y, digits.train[1][part])
        assert x.dtype == torch.uint8
    assert torch.equal(federation[-1][0], federation[19][0])
    assert [len(y) for _, y in federation[2:4]] == [len(part) for part in parts[2:4]]
    with pytest.raises(IndexError):
        federation[20]
    assert federation.train is digits.train
    assert federation.test is digits.test
    assert federation.classes is digits.classes


def test_a_federation_says_what_it_is_in_one_line(digits):
    sizes = [len(part) for part in partition(digits.train[1], "lda:0.3", 20)]
    assert repr(Federation(digits)) == (
        f"Federation(digits, lda:0.3, 20 clients with {min(sizes)} to {max(sizes)} samples)"
    )


def test_a_federation_takes_anything_with_the_same_attributes():
    own = SimpleNamespace(train=(torch.randn(6, 2), torch.arange(6)), test=None, classes=range(6))
    assert len(Federation(own, "iid", clients=3)[0][0]) == 2
    assert repr(Federation(own, "iid", clients=3)).startswith("Federation(SimpleNamespace, iid, 3 clients")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("digits", r"needs data with .train, .test and .classes, such as load\('digits'\), not 'digits'"),
        (SimpleNamespace(train=([1, 2], [1]), test=None, classes=()), "training data have 2 samples but 1 labels"),
    ],
)
def test_a_federation_of_something_else_is_one_sentence(data, sentence):
    with pytest.raises(FedflatError, match=sentence):
        Federation(data, "iid", clients=1)


@pytest.mark.parametrize("shape", [(5000, 3, 4, 4), (5000, 4, 4)])
def test_channel_statistics_are_those_of_the_scaled_pixels(shape):
    x = pixels(*shape)
    scaled = (x if x.dim() == 4 else x[:, None]).double() / 255
    mean, std = channel_statistics(iter([x[:10], x[10:]]))
    torch.testing.assert_close(mean, scaled.mean((0, 2, 3)), rtol=1e-13, atol=0)
    torch.testing.assert_close(std, scaled.std((0, 2, 3), correction=0), rtol=1e-12, atol=0)
    assert all(torch.equal(a, b) for a, b in zip((mean, std), channel_statistics([x]), strict=True))


def test_a_constant_channel_is_not_blown_up():
    x = pixels(7, 2, 3, 3)
    x[:, 1] = 77
    mean, std = channel_statistics([x])
    assert std[1] == 1
    assert 0 < std[0] < 1
    assert mean[1] == pytest.approx(77 / 255)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ([], "need at least one image"),
        ([pixels(0, 1, 2, 2)], "need at least one image"),
        ([torch.zeros(2, 1, 2, 2)], "images must be uint8 .* not torch.float32 with 4 axes"),
        ([pixels(2, 2)], "not torch.uint8 with 2 axes"),
        ([pixels(1, 1, 2, 2), pixels(1, 3, 2, 2)], "some images have 1 channels and others 3"),
    ],
)
def test_statistics_of_something_else_are_one_sentence(arrays, sentence):
    with pytest.raises(FedflatError, match=sentence):
        channel_statistics(arrays)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(6, 3, 4, 4), (6, 4, 4)])
def test_normalise_is_the_formula_bit_for_bit_and_leaves_the_pixels_alone(dtype, shape):
    x = pixels(*shape)
    mean, std = channel_statistics([x])
    images = x if x.dim() == 4 else x[:, None]
    expected = (images.to(dtype) / 255 - mean.to(dtype).view(-1, 1, 1)) / std.to(dtype).view(-1, 1, 1)
    before = x.clone()
    found = normalise(x, mean, std, dtype)
    assert torch.equal(found, expected)
    assert torch.equal(x, before)
    assert found.double().mean((0, 2, 3)).abs().max() < 1e-6


def test_normalise_works_under_vmap():
    x = pixels(2, 6, 3, 4, 4)
    mean, std = channel_statistics(x)
    together = torch.vmap(lambda images: normalise(images, mean, std, torch.float64))(x)
    assert torch.equal(together[1], normalise(x[1], mean, std, torch.float64))
