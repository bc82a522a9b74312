"""What the README shows is run: its Python, its links, its table of costs, and the demo with its picture."""

import io
import re
import runpy
from pathlib import Path

import pytest
from federations import train
from rich.console import Console

import fedflat as ff

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
DEMO = runpy.run_path(str(ROOT / "examples" / "demo.py"))


def test_the_readmes_python_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    seen: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), seen)
    assert (seen["result"].costs["down"], seen["result"].costs["up"]) == (3, 2)


COSTS = re.findall(r"^\| `([\w-]+)` \|.*?\| (\d) \| (\d) \| (\d) \| (\d) \|$", README, re.MULTILINE)


@pytest.mark.parametrize(("name", "down", "up", "gradients", "forwards"), COSTS)
def test_the_readmes_costs_are_those_measured(name, down, up, gradients, forwards):
    costs = train(name, rounds=2).costs
    found = [costs[key] for key in ("down", "up", "gradients", "forwards")]
    assert found == [int(cost) for cost in (down, up, gradients, forwards)]


def test_the_readme_lists_algorithms():
    assert len(COSTS) >= 10
    assert {name for name, *_ in COSTS} <= set(ff.algorithms.names())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    file = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)", file.read_text()):
        assert "://" in target or (file.parent / target).exists(), f"{page} links to {target}, which is not there"


def test_the_demo(tmp_path, capsys):
    DEMO["main"](["--rounds", "2", "--seeds", "2", "--out", str(tmp_path / "new" / "folder")])
    written = capsys.readouterr().out
    picture = tmp_path / "new" / "folder" / "accuracy.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in written
    for name, (algorithm, _, _) in DEMO["TUNED"].items():
        assert written.count(f"{algorithm}, rate") == 2
        (row,) = (line for line in written.splitlines() if re.match(rf"\s*{name} ", line))
        assert re.search(r"\d ± \d.* - .*\d/1", row)  # deviations, no round at the target, vectors


def test_the_demo_with_one_seed_on_a_terminal(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    runs = DEMO["compare"](1, 1, console)
    assert "100%" in screen.getvalue()
    console.print(DEMO["table"](runs))
    assert "±" not in screen.getvalue()
    DEMO["figure"](runs).savefig(tmp_path / "accuracy.png")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--rounds", "0"], "--rounds has to be at least 1, not 0"),
        (["--seeds", "-1"], "--seeds has to be at least 1, not -1"),
        (["--rounds", "many"], "argument --rounds: invalid int value: 'many'"),
        (["--out", __file__], "--out: cannot write to"),
        (["--round-s", "3"], "unrecognized arguments"),
    ],
)
def test_a_wrong_option_is_one_sentence(wrong, sentence, capsys):
    with pytest.raises(SystemExit) as left:
        DEMO["main"](wrong)
    *usage, last = capsys.readouterr().err.splitlines()
    assert left.value.code == 2
    assert len(usage) == 1
    assert sentence in last
