"""Compositions that nobody published: two methods work together, or one sentence says why they do not."""

import random
from itertools import permutations

import pytest
import torch
from federations import NAMES, train

import fedflat as ff
from fedflat import Algorithm
from fedflat.algorithms import AgreedAscent, ControlVariates, GlobalNesterov, SmallActivations


def composed(names: tuple[str, ...]) -> Algorithm | str:
    """The composition, or why there is none."""
    try:
        return ff.algorithms.parse("+".join(names))
    except ff.FedflatError as error:
        return str(error)


PAIRS = {pair: composed(pair) for pair in permutations(NAMES, 2)}
WORKING = [found for found in PAIRS.values() if isinstance(found, Algorithm)]


def test_most_pairs_work_and_the_others_are_refused_in_a_sentence():
    assert len(WORKING) > len(PAIRS) / 2
    for pair, found in PAIRS.items():
        if isinstance(found, str):
            assert "\n" not in found
            assert any(why in found for why in ("both fill", "in there 2 times", "keeps clients to themselves")), pair


@pytest.mark.parametrize("algorithm", random.Random(0).sample(WORKING, 40), ids=str)
def test_pairs_train_to_the_same_bits_on_every_engine(algorithm):
    one = train(algorithm, rounds=3)
    assert one.vector.isfinite().all()
    assert torch.equal(train(algorithm, rounds=3, engine="processes:2").vector, one.vector)


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", WORKING, ids=str)
def test_every_pair_trains(algorithm):
    assert train(algorithm, rounds=3).vector.isfinite().all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "man"])
def test_man_goes_with_everything(name):
    assert train(f"{name}+man(zeta=0.5)", rounds=3).vector.isfinite().all()


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedsol+man",
        GlobalNesterov() + ControlVariates(),
        Algorithm(AgreedAscent(), ControlVariates()),
        Algorithm(AgreedAscent(), ControlVariates(), SmallActivations()),
    ],
    ids=str,
)
def test_parts_make_methods(algorithm):
    assert train(algorithm).vector.isfinite().all()
    again = ff.algorithms.parse(str(algorithm))
    assert torch.equal(train(again).vector, train(algorithm).vector)
