"""Who is active: sorted, in range, reproducible, distributed as said; and every wrong call in one sentence."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflat.data import Available, Bernoulli, Cyclic, Fixed, Participation, Schedule, participation
from fedflat.errors import FedflatError

quick = settings(max_examples=100, deadline=None)


@quick
@given(st.integers(1, 60), st.data(), st.integers(1, 1000), st.integers(0, 99))
def test_fixed_draws_that_many_different_clients(clients, data, number, seed):
    count = data.draw(st.integers(1, clients))
    active = Fixed(count).active(number, clients, seed)
    assert active == sorted(set(active)) == Fixed(count).active(number, clients, seed)
    assert len(active) == count
    assert set(active) <= set(range(clients))


@quick
@given(st.integers(1, 60), st.floats(0.01, 1), st.integers(1, 1000), st.integers(0, 99))
def test_bernoulli_is_never_empty(clients, ratio, number, seed):
    active = Bernoulli(ratio).active(number, clients, seed)
    assert active == sorted(set(active)) == Bernoulli(ratio).active(number, clients, seed)
    assert active
    assert set(active) <= set(range(clients))


@pytest.mark.parametrize("rule", [Fixed(3), Bernoulli(0.3)])
def test_every_client_is_active_as_often_and_rounds_and_seeds_differ(rule):
    rounds = [rule.active(t, 10, seed=0) for t in range(1, 2001)]
    often = np.bincount(np.concatenate(rounds), minlength=10) / 2000
    assert often == pytest.approx(0.3, abs=0.05)
    assert len(set(map(tuple, rounds[:20]))) > 10
    assert rounds != [rule.active(t, 10, seed=1) for t in range(1, 2001)]


def test_bernoulli_clients_are_independent():
    sizes = [len(Bernoulli(0.3).active(t, 100, seed=0)) for t in range(1, 2001)]
    assert np.mean(sizes) == pytest.approx(30, abs=0.5)
    assert np.var(sizes) == pytest.approx(21, rel=0.2)


@quick
@given(st.integers(1, 60), st.data(), st.integers(0, 99))
def test_cyclic_clients_take_turns(clients, data, seed):
    count = data.draw(st.integers(1, clients))
    rule = Cyclic(count)
    rounds = [rule.active(t, clients, seed) for t in range(1, 2 * clients + 1)]
    assert all(len(set(active)) == count and active == sorted(active) for active in rounds)
    often = np.bincount(np.concatenate(rounds), minlength=clients)
    assert set(often) == {2 * count}
    in_turn = [client for active in rounds[: clients // count] for client in active]
    assert len(set(in_turn)) == len(in_turn)


def test_the_order_of_turns_is_drawn_by_the_seed():
    assert [Cyclic(2).active(t, 50, 0) for t in (1, 2)] != [Cyclic(2).active(t, 50, 1) for t in (1, 2)]


@quick
@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 99), st.data())
def test_only_clients_who_are_there_are_active(rounds, clients, seed, data):
    trace = np.random.default_rng(seed).random((rounds, clients)) < 0.5
    trace[:, 0] = True
    count = data.draw(st.none() | st.integers(1, clients))
    rule = participation(Available(trace, count), clients)
    for t in range(1, 2 * rounds + 1):
        there = np.flatnonzero(trace[(t - 1) % rounds]).tolist()
        active = rule.active(t, clients, seed)
        assert active == sorted(active) == rule.active(t, clients, seed)
        assert set(active) <= set(there)
        assert len(active) == (len(there) if count is None else min(count, len(there)))


@pytest.mark.parametrize("form", ["npy", "txt", "csv"])
def test_a_trace_comes_from_a_file(tmp_path, form):
    trace = np.array([[1, 0, 1], [0, 1, 1]])
    file = tmp_path / f"there:2.{form}"
    if form == "npy":
        np.save(file, trace)
    else:
        mark = "," if form == "csv" else ""
        file.write_text("".join(mark.join(map(str, row)) + "\n" for row in trace))
    rule = participation(f"trace:{file}", 3)
    assert [rule.active(t, 3, 0) for t in (1, 2, 3)] == [[0, 2], [1, 2], [0, 2]]
    assert len(participation(f"trace:{file}:1", 3).active(1, 3, 0)) == 1


def test_a_schedule_repeats():
    rule = participation([[2, 0], range(3), np.array([1])], clients=3)
    assert [rule.active(t, 3, seed=t) for t in range(1, 6)] == [[0, 2], [0, 1, 2], [1], [0, 2], [0, 1, 2]]
    assert all(type(i) is int for i in rule.active(3, 3, seed=0))


@pytest.mark.parametrize(
    ("spec", "clients", "rule"),
    [
        (None, 100, Fixed(10)),
        (None, 4, Fixed(4)),
        (0.1, 100, Fixed(10)),
        (0.001, 100, Fixed(1)),
        (0.26, 10, Fixed(3)),
        (1.0, 7, Fixed(7)),
        (25, 100, Fixed(25)),
        (np.float64(0.5), 10, Fixed(5)),
        (np.float32(0.5), 10, Fixed(5)),
        (np.int64(5), 10, Fixed(5)),
        ([[0]], 1, Schedule(((0,),))),
        (((1, 0), (2,)), 3, Schedule(((1, 0), (2,)))),
        (np.array([[0, 1], [1, 2]]), 3, Schedule(((0, 1), (1, 2)))),
        (Bernoulli(0.1), 10, Bernoulli(0.1)),
        ("bernoulli:0.1", 10, Bernoulli(0.1)),
        ("Cyclic:3", 10, Cyclic(3)),
        ("fixed:1", 10, Fixed(1)),
    ],
)
def test_what_simulate_accepts(spec, clients, rule):
    assert participation(spec, clients) == rule


def test_ones_own_rule_passes_through():
    class EvenRounds(Participation):
        def active(self, round, clients, seed):
            return list(range(round % 2, clients, 2))

    rule = EvenRounds()
    assert participation(rule, 10) is rule


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (1, r"the integer 1 is ambiguous: say 1.0 for every client, or \[\[i\], ...\]"),
        (np.int64(1), "the integer 1 is ambiguous"),
        (0, "must be at least 1, not 0"),
        (-3, "must be at least 1, not -3"),
        (6, "6 active clients of 5; a round cannot have more"),
        (Fixed(6), "6 active clients of 5; a round cannot have more"),
        (0.0, r"a fraction of the clients must be in \(0, 1\], not 0.0"),
        (1.5, r"must be in \(0, 1\], not 1.5"),
        (float("nan"), "not nan"),
        (True, "a Participation, not True"),
        (np.True_, "a Participation, not True"),
        ("0.1", "a Participation, not '0.1'"),
        ([0, 1], r"a list of rounds such as \[\[0, 2\], \[1\]\] .* not \[0, 1\]"),
        (["01"], "not "),
        ([], "a schedule needs at least one round"),
        ([[0], []], "round 2 of the schedule has no client"),
        ([[0], [1, 5]], "round 2 of the schedule names client 5, but the clients are 0 to 4"),
        ([[-1]], "round 1 of the schedule names client -1, but"),
        ([[0.0]], "round 1 of the schedule names client 0.0, but"),
        ([[True]], "round 1 of the schedule names client True, but"),
        ([[0], [1], [3, 2, 3]], "round 3 of the schedule names client 3 twice"),
        ("cyclic", "participation 'cyclic': say cyclic:10"),
        ("cyclic:1.5", "participation 'cyclic:1.5': say cyclic:10"),
        ("cyclic:6", "6 active clients of 5"),
        ("bernoulli:2", r"the ratio must be in \(0, 1\], not 2.0"),
        ("cylic:3", "no participation is called 'cylic'; .* the nearest is cyclic"),
        ("trace:/none.txt", "cannot read the trace '/none.txt': No such file"),
        ("trace:/dev/null", "a trace has a row for each round"),
        (Available([[1, 0]]), "the trace is of 2 clients, but there are 5"),
        (Schedule(((7,),)), "round 1 of the schedule names client 7"),
    ],
)
def test_a_wrong_call_is_one_sentence(spec, sentence):
    with pytest.raises(FedflatError, match=sentence):
        participation(spec, clients=5)


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        ([[1, 0], [0, 0]], "in round 2 of the trace no client is there"),
        ([1, 0], "a row for each round and a column for each client"),
        ([[2, 0]], "with 1 or 0"),
        (np.zeros((0, 3)), "a row for each round"),
    ],
)
def test_a_wrong_trace_is_one_sentence(trace, sentence):
    with pytest.raises(FedflatError, match=sentence):
        Available(trace)


@pytest.mark.parametrize("rule", [Fixed, Bernoulli, Cyclic])
@pytest.mark.parametrize("value", [0, -0.5, 1.5, "many", None])
def test_rules_check_their_number(rule, value):
    with pytest.raises(FedflatError, match="participation: the "):
        rule(value)


def test_rules_are_values():
    assert {Fixed(3), Fixed(3), Bernoulli(0.1), Schedule(((0,),))} == {Bernoulli(0.1), Schedule(((0,),)), Fixed(3)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Fixed(3).count = 4


@pytest.mark.parametrize("rule", [Fixed(10), Bernoulli(1e-5), Cyclic(10)])
def test_a_million_clients_cost_what_ten_cost(rule):
    start = time.perf_counter()
    assert all(rule.active(t, 1_000_000, seed=0)[-1] > 10 for t in range(1, 301))
    assert time.perf_counter() - start < 1
