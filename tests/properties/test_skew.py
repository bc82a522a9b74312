"""Feature skew: each client its own noise and angle, the same whenever and in whatever batches its samples are read."""

import time

import pytest
import torch

import fedflat as ff
from fedflat.data import Federation
from fedflat.data.population import Population
from fedflat.data.skew import Skew, gaussian, turned
from fedflat.errors import FedflatError


@pytest.fixture(scope="module")
def digits():
    return ff.data.load("digits")


def test_noise_is_standard_normal_and_a_function_of_the_key():
    z = gaussian(torch.arange(2000), 500)
    assert float(z.mean()) == pytest.approx(0, abs=0.005)
    assert float(z.std()) == pytest.approx(1, abs=0.005)
    assert float((z**4).mean()) == pytest.approx(3, abs=0.05)
    assert float((z.abs() > 1.959964).double().mean()) == pytest.approx(0.05, abs=0.002)
    neighbours = torch.stack([z[:-1].flatten(), z[1:].flatten()])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.005
    assert torch.equal(gaussian(torch.tensor([7, 3]), 500), z[[7, 3]])


def test_a_clients_data_are_the_same_in_any_batch(digits):
    fed = Federation(digits, "lda:0.5+noise:0.5+rotate:30", clients=4, seed=2)
    population = Population(fed, torch.float32, torch.device("cpu"))
    for i, (x, y) in enumerate(fed):
        samples = population.clients[i]
        pieces = [samples.take(rows) for rows in torch.arange(len(y)).split(7)]
        assert torch.equal(torch.cat([x for x, _ in pieces]), x)
        assert torch.equal(torch.cat([y for _, y in pieces]), y)
        assert x.dtype == torch.uint8
    plain = Federation(digits, "lda:0.5", clients=4, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(plain.parts, fed.parts, strict=True))
    assert not any(torch.equal(a, b) for (a, _), (b, _) in zip(plain, fed, strict=True))


def test_levels_are_uniform_and_angles_are_multiples():
    skews = [Skew(0.4, 90.0, 3, client) for client in range(400)]
    levels = torch.tensor([skew.level for skew in skews])
    assert levels.min() >= 0
    assert levels.max() <= 0.4
    assert float(levels.mean()) == pytest.approx(0.2, abs=0.02)
    angles = [skew.angle for skew in skews]
    assert set(angles) == {0.0, 90.0, 180.0, 270.0}
    assert all(60 < angles.count(angle) < 140 for angle in set(angles))
    assert [skew.angle for skew in skews] != [Skew(0.4, 90.0, 4, client).angle for client in range(400)]


def test_noise_has_the_clients_level():
    x = torch.full((50, 1, 16, 16), 128, dtype=torch.uint8)
    skew = Skew(0.2, 0.0, 0, 5)
    noisy = skew(x, torch.arange(50))
    assert float((noisy.double() - 128).std() / 255) == pytest.approx(skew.level, rel=0.03)
    numbers = skew(torch.zeros(50, 300), torch.arange(50))
    assert float(numbers.std()) == pytest.approx(skew.level, rel=0.03)


def test_right_angles_are_exact_and_others_agree_with_them():
    x = torch.randint(0, 256, (3, 2, 9, 9), dtype=torch.uint8)
    for quarter in range(4):
        assert torch.equal(turned(x, 90.0 * quarter), torch.rot90(x, quarter, (-2, -1)))
    smooth = torch.nn.functional.avg_pool2d(x.float(), 5, 1, 2)
    assert (turned(smooth, 89.999) - turned(smooth, 90.0)).abs().max() < 0.1
    disc = (torch.arange(9)[:, None] - 4) ** 2 + (torch.arange(9) - 4) ** 2 < 9
    there_and_back = turned(turned(smooth * disc, 30.0), -30.0)
    assert (there_and_back - smooth * disc)[..., 3:6, 3:6].abs().mean() < 12
    oblong = torch.randint(0, 256, (2, 4, 8), dtype=torch.uint8)
    assert torch.equal(turned(oblong, 180.0), oblong.flip(-1, -2))
    assert turned(oblong, 90.0).shape == oblong.shape


def test_what_cannot_be_skewed_is_one_sentence():
    with pytest.raises(FedflatError, match=r"noise is for pixels and other numbers, not for inputs of torch\.int64"):
        Skew(1.0, 0.0, 0, 0)(torch.zeros(2, 3).long(), torch.arange(2))
    with pytest.raises(FedflatError, match="rotate turns images"):
        turned(torch.zeros(2, 3), 90)


def test_tests_are_clean_but_a_clients_own_test_is_skewed(digits):
    fed = Federation(digits, "iid+noise:0.5", clients=3, client_test=0.2)
    plain = Federation(digits, "iid", clients=3, client_test=0.2)
    assert torch.equal(fed.test[0], digits.test[0])
    assert not torch.equal(fed.client_test(1)[0], plain.client_test(1)[0])
    assert torch.equal(fed.client_test(1)[1], plain.client_test(1)[1])


def test_skew_is_the_same_on_every_engine(digits):
    def train(engine):
        fed = Federation(digits, "lda:0.5+noise:0.3+rotate:45", clients=4)
        model = ff.models.build("mlp", (1, 8, 8), 10)
        return ff.simulate("fedavg", model, fed, rounds=2, epochs=1, engine=engine, device="cpu").vector

    assert torch.equal(train("serial"), train("processes:2"))


def test_a_hundred_thousand_skewed_clients_open_fast():
    from types import SimpleNamespace

    x = torch.zeros(100_000, 1, 2, 2, dtype=torch.uint8)
    data = SimpleNamespace(train=(x, torch.arange(100_000) % 10), test=None, classes=range(10))
    start = time.perf_counter()
    Population(Federation(data, "iid+noise:0.1", clients=100_000), torch.float32, torch.device("cpu"))
    assert time.perf_counter() - start < 10
