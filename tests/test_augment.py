"""Augmentation: what each operation does to a pixel, who draws what, and that nothing else sees it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedflat as ff
from fedflat.data.augment import Augmentation, Crop, Cutout, Flip, augmentation
from fedflat.data.inputs import Inputs
from fedflat.data.population import Samples
from fedflat.errors import FedflatError
from fedflat.feed import LocalData
from fedflat.seeds import generator

quick = settings(max_examples=60, deadline=None)


def pixels(n, *shape, seed=0):
    return torch.randint(1, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def planned(operation, n, height, width, seed=0):
    u = np.random.default_rng(seed).random((n, operation.draws))
    return [torch.from_numpy(column) for column in operation.plan(u, height, width)]


@quick
@given(
    st.integers(1, 5), st.integers(1, 3), st.integers(2, 7), st.integers(2, 7), st.integers(1, 9), st.integers(0, 99)
)
def test_a_crop_is_a_window_of_the_padded_image(n, channels, height, width, border, seed):
    x = pixels(n, channels, height, width)
    top, left = planned(Crop(border), n, height, width, seed)
    assert min(top.min(), left.min()) >= 0
    assert max(top.max(), left.max()) <= 2 * border
    padded = torch.zeros(n, channels, height + 2 * border, width + 2 * border, dtype=torch.uint8)
    padded[:, :, border : border + height, border : border + width] = x
    found = Crop(border)(x, top, left)
    for image, whole, i, j in zip(found, padded, top, left, strict=True):
        assert torch.equal(image, whole[:, i : i + height, j : j + width])


@quick
@given(st.integers(1, 5), st.integers(4, 7), st.integers(4, 7), st.integers(1, 3), st.integers(0, 99))
def test_a_mirrored_crop_is_a_window_of_the_reflected_image(n, height, width, border, seed):
    x = pixels(n, 2, height, width)
    operation = Crop(border, reflect=True)
    top, left = planned(operation, n, height, width, seed)
    whole = torch.nn.functional.pad(x.float(), [border] * 4, mode="reflect").to(torch.uint8)
    for image, padded, i, j in zip(operation(x, top, left), whole, top, left, strict=True):
        assert torch.equal(image, padded[:, i : i + height, j : j + width])


@quick
@given(st.integers(1, 5), st.integers(2, 7), st.integers(2, 7), st.integers(1, 9), st.integers(0, 99))
def test_cutout_zeroes_a_clipped_square(n, height, width, size, seed):
    x = pixels(n, 2, height, width)
    top, left = planned(Cutout(size), n, height, width, seed)
    found = Cutout(size)(x, top, left)
    for image, before, i, j in zip(found, x, top.tolist(), left.tolist(), strict=True):
        assert 0 <= i + size // 2 < height
        assert 0 <= j + size // 2 < width
        expected = before.clone()
        expected[:, max(0, i) : max(0, i + size), max(0, j) : max(0, j + size)] = 0
        assert torch.equal(image, expected)


def test_a_flip_exchanges_left_and_right_of_half_the_images():
    x = pixels(2000, 1, 2, 3)
    (flipped,) = planned(Flip(), 2000, 2, 3)
    found = Flip()(x, flipped)
    assert float(flipped.double().mean()) == pytest.approx(0.5, abs=0.03)
    assert torch.equal(found[flipped == 1], x[flipped == 1].flip(-1))
    assert torch.equal(found[flipped == 0], x[flipped == 0])


@pytest.mark.parametrize("operation", [Crop(4, 0.3), Cutout(5, 0.3)])
def test_an_operation_stays_off_as_often_as_said(operation):
    x = pixels(3000, 1, 9, 9)
    same = (operation(x, *planned(operation, 3000, 9, 9)) == x).flatten(1).all(1)
    chance = 1 / 81 if isinstance(operation, Crop) else 0
    assert float(same.double().mean()) == pytest.approx(0.7 + 0.3 * chance, abs=0.03)


def test_all_windows_are_equally_likely():
    top, left = planned(Crop(1), 9000, 4, 4)
    assert torch.bincount(3 * top + left, minlength=9) / 9000 == pytest.approx(torch.full((9,), 1 / 9), abs=0.012)


@pytest.mark.parametrize("shape", [(2, 6, 5), (6, 5)])
@pytest.mark.parametrize(
    "word",
    [
        "crop:2+flip+cutout:3",
        "crop:2:reflect+flip",
        "normalise+flip+crop:2:0.5+cutout:3",
        "flip:1+normalise+cutout:2:0.9",
    ],
)
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_it_can_be_vmapped_and_takes_images_one_by_one(shape, word, kind):
    x = torch.stack([pixels(4, *shape, seed=s) for s in (0, 1, 2)]).to(kind)
    inputs = Inputs([x[0]], torch.float64, torch.device("cpu"), None, augmentation(word))
    draws = torch.stack(inputs.draws([range(4)] * 3, generator(0, "test")))
    together = torch.vmap(inputs)(x, draws)
    for images, rows, found in zip(x, draws, together, strict=True):
        assert torch.equal(found, inputs(images, rows))
        alone = [inputs(images[i : i + 1], rows[i : i + 1]) for i in range(4)]
        assert torch.equal(found, torch.cat(alone))


def test_zeros_are_black_before_and_mean_colour_behind_normalise():
    x = pixels(50, 3, 6, 6)
    for word, zero in (
        ("cutout:4", lambda inputs: -inputs.mean / inputs.std),
        ("normalise+cutout:4", lambda _: torch.zeros(3)),
    ):
        inputs = Inputs([x], torch.float64, torch.device("cpu"), None, augmentation(word))
        (draws,) = inputs.draws([range(50)], generator(0, "test"))
        changed = (inputs(x, draws) != inputs(x)).all(1)
        assert changed.any()
        values = inputs(x, draws).movedim(1, -1)[changed]
        assert torch.allclose(values, zero(inputs).double().expand_as(values))


def test_the_order_is_the_one_of_the_word():
    x = pixels(40, 1, 8, 8)
    seen = []
    for word in ("cutout:4+flip:1", "flip:1+cutout:4"):
        inputs = Inputs([x], torch.float64, torch.device("cpu"), None, augmentation(word))
        seen.append(inputs(x, torch.cat([torch.tensor([[0, 0, 1]] if word[0] == "c" else [[1, 0, 0]])] * 40)))
    assert torch.equal(seen[0][..., :4, :4], inputs(x.flip(-1))[..., :4, :4])  # cut on the left, then flipped
    assert not torch.equal(seen[0], seen[1])


def test_draws_of_a_minibatch_do_not_depend_on_how_many_follow():
    rule = augmentation("crop:4+flip+normalise+cutout:16")
    few, many = (rule.draws([5, 5, 3] * k, (32, 32), generator(1, "augment", 2, 3)) for k in (1, 4))
    assert all(torch.equal(a, b) for a, b in zip(few, many, strict=False))
    assert [len(draws) for draws in many] == [5, 5, 3] * 4
    others = [generator(*ids) for ids in ((2, "augment", 2, 3), (1, "augment", 3, 3), (1, "augment", 2, 4))]
    assert not any(torch.equal(few[0], rule.draws([5], (32, 32), rng)[0]) for rng in others)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Crop:4 + flip:0.5+normalise", "crop:4+flip"),
        ("crop:4:1:reflect+crop:2:0.5:reflect", "crop:4:reflect+crop:2:0.5:reflect"),
        ("normalize+flip+crop:4:0.5", "normalise+flip+crop:4:0.5"),
        ("crop:4:1+flip:0.25+normalise+cutout:16", "crop:4+flip:0.25+normalise+cutout:16"),
    ],
)
def test_a_word_has_one_spelling(typed, meant):
    assert str(augmentation(typed)) == str(augmentation(meant)) == meant
    assert augmentation(augmentation(typed)) == augmentation(meant)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("crop", "'crop': crop is spelled crop:4, or crop:4:0.5 with a probability"),
        ("crop:0", "crop is spelled"),
        ("crop:4:0.5:1", "crop is spelled"),
        ("cutout:4:reflect", "cutout is spelled"),
        ("flip:x", "flip is spelled flip, or flip:0.5"),
        ("flip:0", "the probability of flip is above 0 and at most 1"),
        ("cutout:16:1.5", "the probability of cutout"),
        ("cutuot:16", "no augmentation is called 'cutuot'; .* the nearest is cutout"),
        ("normalise", "'normalise' does nothing"),
        ("flip+normalise+normalise", "comes once"),
        ("", "no augmentation is called ''"),
    ],
)
def test_a_wrong_word_is_one_sentence(word, sentence):
    with pytest.raises(FedflatError, match=sentence):
        augmentation(word)


# In a run


@pytest.fixture(scope="module")
def digits():
    return ff.data.Federation(ff.data.load("digits"), "lda:0.5", clients=6)


def train(digits, algorithm="fedavg", watch=None, **changes):
    model = ff.models.build("mlp", (1, 8, 8), 10)
    if watch is not None:
        model.insert(0, Watch(watch))
    settings = {
        "rounds": 2,
        "epochs": 1,
        "participation": 3,
        "augment": "crop:2+flip",
        "engine": "serial",
        "device": "cpu",
    }
    return ff.simulate(algorithm, model, digits, **{**settings, **changes})


class Watch(torch.nn.Module):
    """Keeps what training sees; copies of it keep it in the same list."""

    def __init__(self, seen):
        super().__init__()
        self.seen = SimpleNamespace(batches=seen)

    def __deepcopy__(self, memo):
        return Watch(self.seen.batches)

    def forward(self, x):
        if self.training:
            self.seen.batches.append(x.detach().clone())
        return x


def test_it_is_equal_on_every_engine_and_changes_the_run(digits):
    serial, processes = (train(digits, engine=engine).vector for engine in ("serial", "processes:2"))
    assert torch.equal(serial, processes)
    assert not torch.equal(serial, train(digits, augment=None).vector)
    assert not torch.equal(serial, train(digits, augment="flip+crop:2").vector)


def test_both_gradients_of_a_step_and_all_algorithms_see_the_same_images(digits):
    steps = sum(row["steps"] for row in train(digits).history)
    seen = {name: [] for name in ("fedavg", "fedsam", "perfedavg")}
    for name, batches in seen.items():
        train(digits, name, batches)
    assert len(seen["fedsam"]) >= 2 * steps
    for step in range(steps):
        first, second = seen["fedsam"][2 * step : 2 * step + 2]
        assert torch.equal(first, second)
        assert torch.equal(first, seen["fedavg"][step])
    known = {x.numpy().tobytes() for x in seen["fedavg"][:steps]}
    assert sum(x.numpy().tobytes() in known for x in seen["perfedavg"]) >= steps - 6  # one may be left over a round


def test_it_is_drawn_anew_in_every_epoch_round_and_client(digits):
    seen = []
    train(digits, watch=seen, batch_size=None, epochs=2, participation=[[0], [0]], augment="crop:2")
    images = list(seen[:4])
    assert not any(torch.equal(images[i], images[j]) for i in range(4) for j in range(i))


def test_tests_and_results_see_no_augmentation(digits):
    result = train(digits, rounds=1, lr=0.0)
    plain = train(digits, rounds=1, lr=0.0, augment=None)
    assert result.history[0]["test_loss"] == plain.history[0]["test_loss"]
    x, _ = digits.test
    assert torch.equal(result.inputs(x), plain.inputs(x))


def test_images_only(digits):
    with pytest.raises(FedflatError, match="a border of 8 cannot mirror images of 8x8 pixels"):
        train(digits, augment="crop:8:reflect")
    flat = [(torch.randn(20, 4), torch.arange(20) % 2)]
    with pytest.raises(FedflatError, match=r"augment is for images, not for samples of shape \(4,\)"):
        ff.simulate("fedavg", torch.nn.Linear(4, 2), flat, augment="flip")
    with pytest.raises(FedflatError, match="no augmentation is called 'mirror'"):
        train(digits, augment="mirror")


def test_without_augmentation_nothing_is_drawn(digits):
    inputs = Inputs([digits.train[0]], torch.float32, torch.device("cpu"))
    assert inputs.draws([range(5)], None) is None
    data = LocalData(Samples(*digits.train), [np.arange(2)], inputs, 1)
    assert torch.equal(next(iter(data))[0].x, inputs(digits.train[0][:2]))


def test_a_run_goes_on_with_its_own_augmentation_only(digits, tmp_path):
    train(digits, rounds=1, out=tmp_path)
    with pytest.raises(FedflatError, match="augment"):
        train(digits, augment="flip", out=tmp_path, resume=True)
    whole, pieces = train(digits), train(digits, out=tmp_path, resume=True)
    assert torch.equal(whole.vector, pieces.vector)


# The form that a model asks for


class Asking(torch.nn.Sequential):
    def __init__(self, *form):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(form[0] * form[1] * form[2], 3))
        self.input_shape = form


def formed(x, form, word=None):
    inputs = Inputs([x], torch.float64, torch.device("cpu"), form, augmentation(word))
    (draws,) = inputs.draws([range(len(x))], generator(0, "test")) or [None]
    return inputs, inputs(x, draws)


@pytest.mark.parametrize("shape", [(1, 28, 28), (28, 28)])
def test_grey_28_becomes_rgb_32_with_a_black_border(shape):
    x = pixels(5, *shape)
    inputs, found = formed(x, (3, 32, 32))
    assert found.shape == (5, 3, 32, 32)
    plain = Inputs([x], torch.float64, torch.device("cpu"))(x)
    assert torch.equal(found[:, :, 2:-2, 2:-2], plain.expand(-1, 3, -1, -1))
    black = float(-inputs.mean / inputs.std)
    assert torch.allclose(found[:, :, :2], torch.tensor(black, dtype=torch.float64))
    assert formed(x, (3, 32, 32), "crop:4+flip")[1].shape == (5, 3, 32, 32)


def test_other_sizes_are_interpolated_and_numbers_stay_numbers():
    x = pixels(4, 3, 64, 64)
    assert formed(x, (3, 32, 32))[1].shape == (4, 3, 32, 32)
    constant = torch.full((2, 1, 10, 10), 77.0)
    assert torch.allclose(formed(constant, (3, 40, 40))[1], torch.tensor(77.0, dtype=torch.float64))
    assert formed(constant, (1, 12, 12))[1][0, 0, 0, 0] == 0


def test_a_model_gets_what_it_asks_for():
    clients = [(pixels(12, 1, 28, 28, seed=s), torch.arange(12) % 3) for s in range(3)]
    result = ff.simulate(
        "fedavg", Asking(3, 32, 32), clients, test=clients[0], rounds=1, engine="serial", augment="crop:4"
    )
    assert result.history[0]["test_accuracy"] is not None
    assert result.inputs(clients[0][0]).shape == (12, 3, 32, 32)
    with pytest.raises(FedflatError, match="asks for images of 3x32x32, but the clients' are 2x28x28"):
        ff.simulate("fedavg", Asking(3, 32, 32), [(pixels(6, 2, 28, 28), torch.arange(6) % 3)], rounds=1)
    model = Asking(3, 32, 32)
    model.input_shape = (3, 32)
    with pytest.raises(FedflatError, match=r"input_shape has to be \(channels, height, width\), not \(3, 32\)"):
        ff.simulate("fedavg", model, clients, rounds=1)


def test_an_image_of_the_right_form_is_not_touched():
    x = pixels(4, 3, 8, 8)
    assert Inputs([x], torch.float32, torch.device("cpu"), (3, 8, 8)).form is None


def test_augmentations_are_values():
    assert augmentation("crop:4+flip") == Augmentation((Crop(4), Flip()))


@pytest.mark.gpu
def test_a_gpu_augments_and_skews_alike(digits):
    fed = ff.data.Federation(ff.data.load("digits"), "lda:0.5+noise:0.2+rotate:90", clients=6)
    settings = {"rounds": 1, "lr": 0.01, "augment": "crop:2+flip+normalise+cutout:4"}
    cpu, gpu = (train(fed, **settings, device=device).vector.cpu() for device in ("cpu", "cuda"))
    assert torch.allclose(cpu, gpu, atol=1e-4)
