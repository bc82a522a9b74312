"""A refactor changes no number: every algorithm repeats its stored curve."""

import pytest
from federations import NAMES
from regenerate import agree, curve, stored

AGAIN = "if that is meant, run `python tests/golden/regenerate.py` and say why in CHANGELOG.md, under Numbers changed"


@pytest.mark.parametrize("name", NAMES)
def test_no_number_has_changed(name):
    golden = stored()
    assert name in golden, f"{name} has no golden curve; run `python tests/golden/regenerate.py`"
    found = curve(name)
    assert agree(found, golden[name]), f"the numbers of {name} have changed, {golden[name]} to {found}; {AGAIN}"


def test_no_curve_outlives_its_algorithm():
    gone = sorted(stored().keys() - set(NAMES))
    assert not gone, f"there is no algorithm {', '.join(gone)} any more, but a golden curve; {AGAIN}"
