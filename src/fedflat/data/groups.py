"""Which samples belong together: ids of clients, patients or sites, one for each sample."""

__all__ = ["coded"]

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflat.errors import FedflatError


def coded(groups: Any, samples: int, what: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The place of each sample's group among the sorted groups, and those groups.

    >>> coded(["b", "a", "b"], 3, "the groups")
    (array([1, 0, 1]), array(['a', 'b'], dtype='<U1'))
    """
    ids = groups.numpy(force=True) if isinstance(groups, Tensor) else np.asarray(groups)
    if ids.ndim != 1 or ids.dtype.kind not in "iubUS" or len(ids) != samples:
        raise FedflatError(
            f"{what} are one id for each of the {samples} training samples, whole numbers or names, "
            f"not {ids.dtype} of shape {ids.shape}"
        )
    known, places = np.unique(ids, return_inverse=True)
    return places, known
