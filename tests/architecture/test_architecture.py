"""The shape of the package: who may import whom, names that say nothing, sizes, docstrings, and what is exported.

Read from the sources by `ast`, so a rule for a package holds from its first file on.
"""

import ast
import importlib
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedflat as ff

SRC = Path(ff.__file__).parent
ROOT = Path(__file__).parents[2]
FILES = sorted(SRC.rglob("*.py"))
PACKAGES = [f for f in FILES if f.name == "__init__.py"]

LEAVES = {"errors", "names", "seeds"}
MAY_IMPORT = {  # a package not named here, and every single file, is above all of these
    "core": {"errors"},
    "algorithms": {"core", "errors"},
    "engines": {"core", *LEAVES},
    "data": LEAVES,
    "models": LEAVES,
    "diagnostics": {"core", "data", "device", *LEAVES},
    "report": {"results", "errors"},
    "errors": set(),
    "names": {"errors"},
    "seeds": set(),
}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "manager", "base", "common", "misc"}
MOST_LINES = 400  # 300 is the aim
PART_MEDIAN, PART_MOST = 12, 35


def name_of(file: Path) -> str:
    return str(file.relative_to(SRC))


def package_of(file: Path) -> str:
    """The package below fedflat, or the single file itself."""
    return file.relative_to(SRC).parts[0].removesuffix(".py")


def imported(file: Path) -> Iterator[str]:
    """What of ours a file imports, relative or not, as a name below fedflat; "" is fedflat itself."""
    here = ("fedflat", *file.relative_to(SRC).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "fedflat" else [module]
        else:
            continue
        yield from (name.partition(".")[2] for name in names if name.partition(".")[0] == "fedflat")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_point_downwards(file):
    package = package_of(file)
    if package in MAY_IMPORT:
        allowed = MAY_IMPORT[package] | {package}
        wrong = sorted({name for name in imported(file) if name.partition(".")[0] not in allowed})
        assert not wrong, f"{name_of(file)} imports {wrong}; {package} may import {sorted(MAY_IMPORT[package])}"


def test_every_package_has_its_place_in_the_order():
    packages = {package_of(f) for f in PACKAGES if f.parent != SRC}
    assert packages <= MAY_IMPORT.keys() | {"recipes"}, "say in MAY_IMPORT what a new package may import"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_names_say_something(file):
    words = {word for name in file.relative_to(SRC).parts for word in name.removesuffix(".py").lower().split("_")}
    assert not words & EMPTY_NAMES, f"{name_of(file)}: name it after what it does"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_are_short(file):
    lines = len(file.read_text().splitlines())
    assert lines <= MOST_LINES, f"{name_of(file)} has {lines} lines; two things live in it"


def test_every_module_says_what_it_is():
    everywhere = [
        *FILES,
        *(f for folder in ("tests", "examples", "benchmarks") for f in ROOT.glob(f"{folder}/**/*.py")),
    ]
    silent = [str(f) for f in everywhere if not ast.get_docstring(ast.parse(f.read_text()))]
    assert not silent, f"without a docstring: {silent}"


@pytest.mark.parametrize("file", PACKAGES, ids=name_of)
def test_all_names_exist(file):
    package = importlib.import_module(".".join(("fedflat", *file.relative_to(SRC).parent.parts)))
    missing = [name for name in getattr(package, "__all__", ()) if not hasattr(package, name)]
    assert not missing, f"{name_of(file)}: __all__ names {missing}, which are not there"


def test_all_is_what_fedflat_exports():
    """What is declared for type checkers, and so for readers, is what is there when it is asked for."""
    (declared,) = [node for node in ast.parse((SRC / "__init__.py").read_text()).body if isinstance(node, ast.If)]
    names = {alias.name for node in declared.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(ff.__all__) == {*names, "__version__"}
    for name in ff.__all__:
        assert getattr(ff, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        ff.simulat  # noqa: B018


def parts() -> dict[str, int]:
    """The lines of code of every part in algorithms: no blank lines, comments or docstrings."""
    found: dict[str, int] = {}
    for file in FILES:
        source = file.read_text()
        for node in ast.parse(source).body if package_of(file) == "algorithms" else ():
            if isinstance(node, ast.ClassDef) and "Part" in [ast.unparse(base) for base in node.bases]:
                found[node.name] = len(code_lines(node, source.splitlines()))
    return found


def code_lines(node: ast.ClassDef, lines: list[str]) -> set[int]:
    rows = {i for i in range(node.lineno, (node.end_lineno or 0) + 1) if lines[i - 1].split("#")[0].strip()}
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner):
            rows -= set(range(inner.body[0].lineno, (inner.body[0].end_lineno or 0) + 1))
    return rows


def test_a_part_is_one_paragraph():
    lines = parts()
    long = {name: count for name, count in lines.items() if count > PART_MOST}
    assert not long, f"longer than {PART_MOST} lines of code: {long}"
    assert statistics.median(lines.values()) <= PART_MEDIAN, lines


def test_every_part_is_exported_beside_the_factories():
    names = {name.replace("-", "_") for name in ff.algorithms.names()}
    assert parts().keys() | names <= set(ff.algorithms.__all__)
