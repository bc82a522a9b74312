"""What all tests share: one thread each, since they run side by side; what needs a GPU or real data may be skipped."""

import pytest
import torch

from fedflat.data.cache import find, home
from fedflat.data.catalogue import SETS

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        for name in [name for mark in item.iter_markers("real_data") for name in mark.args if not find(SETS[name])]:
            reason = f"needs the official files of {name} in {home()}; fedflat data get {name} fetches them"
            item.add_marker(pytest.mark.skip(reason=reason))
