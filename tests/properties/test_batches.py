"""The minibatches of a local round: epochs, steps, short batches, full batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflat.data import minibatches
from fedflat.errors import FedflatError

sizes = st.integers(1, 40)
exact = settings(max_examples=150, deadline=None)


def rng(seed=0):
    return np.random.default_rng(seed)


@exact
@given(sizes, sizes, st.integers(1, 4))
def test_every_epoch_is_a_permutation_cut_into_consecutive_batches(n, batch_size, epochs):
    batches = minibatches(n, batch_size, epochs=epochs, rng=rng())
    a_round = -(-n // batch_size)
    assert len(batches) == epochs * a_round
    for start in range(0, len(batches), a_round):
        epoch = batches[start : start + a_round]
        assert sorted(np.concatenate(epoch).tolist()) == list(range(n))
        assert [len(batch) for batch in epoch[:-1]] == [batch_size] * (a_round - 1)
        assert len(epoch[-1]) == n - batch_size * (a_round - 1)


@exact
@given(sizes, sizes, st.integers(1, 30))
def test_steps_are_the_first_batches_of_the_epochs(n, batch_size, steps):
    batches = minibatches(n, batch_size, steps=steps, rng=rng())
    epochs = minibatches(n, batch_size, epochs=steps, rng=rng())
    assert len(batches) == steps
    assert all(np.array_equal(a, b) for a, b in zip(batches, epochs, strict=False))


@exact
@given(sizes, st.sampled_from(["epochs", "steps"]), st.integers(1, 5), st.sampled_from([None, 0, 10]))
def test_a_full_batch_is_everything_in_order_and_draws_nothing(n, unit, count, more):
    draws = rng()
    before = draws.bit_generator.state
    batches = minibatches(n, more if more is None else n + more, **{unit: count}, rng=draws)
    assert [batch.tolist() for batch in batches] == [list(range(n))] * count
    assert draws.bit_generator.state == before


def test_the_order_depends_on_rng_and_changes_from_epoch_to_epoch():
    first, second = minibatches(40, 39, epochs=2, rng=rng())[::2]
    assert first.tolist() != second.tolist()
    assert first.tolist() == minibatches(40, 39, epochs=1, rng=rng())[0].tolist()
    assert first.tolist() != minibatches(40, 39, epochs=1, rng=rng(1))[0].tolist()


@pytest.mark.parametrize(
    ("n", "batch_size", "length", "sentence"),
    [
        (5, 2, {}, "either epochs or steps, not epochs=None and steps=None"),
        (5, 2, {"epochs": 1, "steps": 2}, "either epochs or steps, not epochs=1 and steps=2"),
        (5, 2, {"epochs": 0}, "epochs must be a positive integer, not 0"),
        (5, 2, {"epochs": 1.5}, "epochs must be a positive integer, not 1.5"),
        (5, 2, {"steps": -1}, "steps must be a positive integer, not -1"),
        (5, 0, {"steps": 1}, "batch_size must be a positive integer, not 0"),
        (0, None, {"steps": 1}, "n must be a positive integer, not 0"),
    ],
)
def test_a_wrong_call_is_one_sentence(n, batch_size, length, sentence):
    with pytest.raises(FedflatError, match=sentence):
        minibatches(n, batch_size, **length, rng=rng())
