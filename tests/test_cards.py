"""Every method describes itself: its card, its page, the status table, and the page that adds a method."""

import importlib.util
import inspect
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import textbook
import torch
from federations import NAMES, network
from test_reference import CASES, both

import fedflat as ff
from fedflat import cards, pages
from fedflat.algorithms import registry
from fedflat.algorithms.registry import Searched
from fedflat.cli import main

ROOT = Path(__file__).parents[1]
ADDING = (ROOT / "docs" / "add-an-algorithm.md").read_text()
ENGINES = ["serial", "processes:2", *(["vmapped"] if hasattr(ff.engines, "Vmapped") else [])]
WITHOUT_A_PAPER = {"local"}


@pytest.fixture(scope="module")
def found() -> dict[str, cards.Card]:
    return {str(card.algorithm): card for card in cards.cards()}


# What a card holds.


def test_every_method_has_a_card_with_formula_and_idea(found):
    assert list(found) == NAMES
    for name, card in found.items():
        (method,) = card.methods
        assert method.name == name
        assert method.idea.endswith("."), name
        assert method.formula, name
        assert "Departures" not in "".join(method.text), name


def test_every_method_has_its_reference(found):
    assert {name for name in NAMES if found[name].methods[0].reference is None} == WITHOUT_A_PAPER & set(NAMES)
    for name, reference in cards.references().items():
        assert {"title", "year"} <= reference.fields.keys(), name
        assert 2016 < reference.year < 2030
        assert reference.bibtex.count("{") == reference.bibtex.count("}")
        assert re.fullmatch(r"\d{4}\.\d{5}", reference.fields.get("eprint", "0000.00000")), name
        assert "\\" not in f"{reference}", name


def test_a_reference_is_cited_as_one_writes():
    known = cards.references()
    assert str(known["fedgf"]).startswith("Lee and Yoon: Rethinking")
    assert str(known["fedavg"]).endswith("from Decentralized Data. AISTATS 2017")
    assert known["fedyogi"] == known["fedadam"]
    assert known["fedcm"].venue == "arXiv"
    assert known["fedavg"].fields["author"].endswith('Ag{\\"u}era y Arcas, Blaise')


def test_the_costs_are_those_counted_by_hand(found):
    cost = runpy.run_path(str(ROOT / "tests" / "conformance" / "test_cost.py"))["COST"]
    for name, card in found.items():
        down, up, *computed = cost[name]
        assert [card.costs["gradients"], card.costs["forwards"]] == computed, name
        if not card.algorithm.filling("trainable"):
            sent = card.costs["down"], card.costs["up"]
            assert sent == pytest.approx((down, up), abs=0.02), (
                name
            )  # a scalar weighs more beside the tests' small model


def test_flops_are_counted_on_one_local_step(found):
    assert found["fedavg"].costs["flops"] == 1.0
    assert found["fedsam"].costs["flops"] == 2.0
    forward = found["fedntd"].costs["flops"] - 1
    assert 0.3 < forward < 0.4
    assert found["fedsol"].costs["flops"] == pytest.approx(2 + forward)
    assert cards.card("fedsol(layers=head)").costs["flops"] == pytest.approx(1 + 2 * forward, abs=1e-3)


def test_slots_forces_and_duals(found):
    scaffold, fedsol = found["scaffold"], found["fedsol"]
    assert list(scaffold.slots) == ["pull", "finish", "update"]
    assert scaffold.slots["pull"] == ["ControlVariates (once)"]
    assert fedsol.slots == {"perturb": ["AscendAlong"]}
    assert fedsol.forces == {"Preservation": "AscendAlong"}
    assert [name for name in ("fedavg", "scaffold", "feddyn", "fedscar", "fednsam") if found[name].duals] == [
        "scaffold",
        "feddyn",
        "fedscar",
    ]


def test_a_hyper_parameter_is_what_the_factory_says(found):
    hyper = {h.name: h for h in found["fedsol"].methods[0].hyper}
    assert (hyper["rho"].default, hyper["rho"].allowed) == (2.0, ">= 0")
    assert hyper["layers"].allowed == "'all', 'head' or 'body'"
    assert hyper["rho"].searched == (Searched((0.1, 0.5, 1.0, 2.0), "FedSoL, Table 4"),)
    for name in NAMES:
        signature = inspect.signature(registry.factory_of(name))
        for h in found[name].methods[0].hyper:
            assert h.default == signature.parameters[h.name].default
            assert not h.allowed.startswith("any "), f"{name}: {h.name} has no range"


# What is shown.


def test_the_command_prints_a_page(capsys, found):
    assert main(["algorithms", "fedsam"]) == 0
    assert capsys.readouterr().out == pages.page(found["fedsam"])


def test_an_expression_has_the_parts_of_all(capsys):
    assert main(["algorithms", "fedsam(rho=0.3)+scaffold"]) == 0
    page = capsys.readouterr().out
    for words in (
        "# fedsam(rho=0.3)+scaffold",
        "## scaffold",
        "LocalAscent",
        "`fedsam(rho)`",
        "@inproceedings{scaffold",
    ):
        assert words in page
    assert "| 2 | 2 | 2 | 0 | 2.00 |" in page


def test_a_part_alone_has_a_page():
    page = pages.page(cards.card("LocalAscent(rho=0.2)"))
    assert page.startswith("# LocalAscent(rho=0.2)")
    assert "| `perturb` | LocalAscent |" in page
    assert "## BibTeX" not in page


def test_json(capsys):
    assert main(["algorithms", "fedgmt", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["methods"][0]["reference"]["year"] == 2025
    assert record["methods"][0]["hyper"][0]["searched"][0]["values"] == [0.95, 0.995, 0.998]
    assert record["costs"]["down"] == 2
    assert main(["algorithms", "--json"]) == 0
    assert [r["algorithm"] for r in json.loads(capsys.readouterr().out)] == NAMES


def test_an_unknown_name_is_refused_with_the_nearest_one(capsys):
    assert main(["algorithms", "fedslo"]) == 2
    said = capsys.readouterr()
    assert "did you mean fedsol?" in said.err
    assert said.out == ""


def test_lines_are_no_longer_than_the_terminal(found):
    text = pages.lines(list(found.values()), 100)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" in text
    assert "…" not in pages.lines(list(found.values()))


def test_the_committed_pages_are_up_to_date():
    written = runpy.run_path(str(ROOT / "docs" / "build.py"))["written"]()
    stale = [
        str(path.relative_to(ROOT)) for path, text in written.items() if not path.exists() or path.read_text() != text
    ]
    gone = set((ROOT / "docs" / "methods").glob("*.md")) - written.keys()
    assert not stale, "say `make docs`"
    assert not gone, "say `make docs`"


# The page that adds a method.


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The method of docs/add-an-algorithm.md, registered for one test."""
    file, loop = re.findall(r"^```python\n(.*?)^```", ADDING, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    path = tmp_path / "fedsettle.py"
    path.write_text(file)
    spec = importlib.util.spec_from_file_location("fedflat.algorithms.fedsettle", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    seen: dict = {}
    exec(compile(loop, "add-an-algorithm.md", "exec"), seen)
    monkeypatch.setitem(textbook.ALGORITHMS, "fedsettle", seen["FedSettle"])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_added_method_agrees_with_its_loop_on_every_engine(added, engine):
    hyper = {"rho": 0.3, "last": 0.2}
    for case in (CASES[1], CASES[-2]):
        result, expected = both("fedsettle", hyper, "fedsettle(rho=0.3, last=0.2)", case, network(), engine=engine)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_the_added_method_has_a_card_and_is_gone_afterwards(added):
    assert "fedsettle" in ff.algorithms.names()
    card = cards.card("fedsettle+scaffold")
    assert card.slots["rate"] == ["Settling"]
    assert card.methods[0].reference is None
    assert card.costs["gradients"] == 2


def test_nothing_is_left_registered():
    assert ff.algorithms.names() == NAMES
