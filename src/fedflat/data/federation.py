"""A data set and who holds which of its samples: what `simulate(clients=...)` takes."""

__all__ = ["Federation"]

from collections.abc import Sequence
from functools import cached_property
from numbers import Real
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedflat.data.groups import coded
from fedflat.data.holdouts import aligned, hold_out, within
from fedflat.data.partition import is_natural, modifiers, spelled
from fedflat.data.partition import partition as divide
from fedflat.data.skew import Skew
from fedflat.data.tables import Ints
from fedflat.errors import FedflatError
from fedflat.seeds import generator

Pair = tuple[Tensor, Tensor]


@runtime_checkable
class Source(Protocol):
    """Anything with the samples of a `Dataset`."""

    @property
    def train(self) -> Pair:
        """Training samples (x, y)."""
        ...

    @property
    def test(self) -> Pair | None:
        """Test samples (x, y)."""
        ...

    @property
    def classes(self) -> Sequence[Any]:
        """The names of the classes."""
        ...


class Federation(Sequence[Pair]):
    """The clients of a data set, as a sequence of (x, y).

    It holds one copy of the pixels, uint8, and one index tensor per client in `parts`; a client's samples are gathered
    when asked for. There are 20 clients unless it is said, and with "natural" as many as the data have.

    Before anything is dealt, `validation` and `client_test` hold out shares of the training data, by sample or, with
    `groups` (an id for each sample: a patient, a site), by whole groups. `validation` is one set, `client_test(i)` the
    test set of client i: of its own samples where the partition is natural, else in the proportions of its classes.
    Without `client_test`, natural clients have the test samples that the data say are theirs.

    >>> from fedflat.data.datasets import load
    >>> Federation(load("digits"), "iid", clients=10)
    Federation(digits, iid, 10 clients with 143 to 144 samples)
    >>> Federation(load("digits"), "pathological:2", clients=10, validation=0.1)
    Federation(digits, pathological:2, 10 clients with 129 to 129 samples, 242 repeated, 245 unused, 144 for validation)
    """

    def __init__(
        self,
        data: Source,
        partition: str = "lda:0.3",
        clients: int | None = None,
        seed: int = 0,
        *,
        validation: float = 0.0,
        client_test: float = 0.0,
        groups: Any = None,
    ) -> None:
        if not isinstance(data, Source):
            raise FedflatError(
                f"a Federation needs data with .train, .test and .classes, such as load('digits'), not {data!r}"
            )
        if len(data.train[0]) != len(data.train[1]):
            raise FedflatError(f"the training data have {len(data.train[0])} samples but {len(data.train[1])} labels")
        self.data, self.seed = data, seed
        self.partition = spelled(partition)
        self._skew = {name: value for name, value in modifiers(partition).items() if name in ("noise", "rotate")}
        labels = np.asarray(data.train[1])
        natural = is_natural(partition)
        ids = getattr(data, "clients", None) if natural else None
        self._ids = None if ids is None else np.asarray(ids)
        self._owners = None if ids is None else coded(ids, len(labels), "the natural clients")[0]
        kept = np.arange(len(labels))
        self._held = {"validation": kept[:0], "client_test": kept[:0]}
        shares = {"validation": validation, "client_test": client_test}
        for name, share in shares.items():
            if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < 1:
                raise FedflatError(f"{name} is the share of the training data to hold out, from 0 to 1, not {share!r}")
        if groups is not None and not any(shares.values()):
            raise FedflatError("groups are what validation or client_test hold out as a whole; say how much of them")
        if any(shares.values()):
            kept = self._hold_out(kept, labels, shares, groups)
        self.kept = torch.from_numpy(kept)
        mine = None if self._owners is None else self._owners[kept]
        count = 20 if clients is None and not natural else clients
        if len(kept) == len(labels):
            self.parts = divide(data.train[1], partition, count, seed, mine)
        else:
            self.parts = [
                self.kept[part] for part in divide(torch.from_numpy(labels[kept]), partition, count, seed, mine)
            ]
        self._tests = self._own_tests(labels, client_test) if client_test else None

    @property
    def train(self) -> Pair:
        """The training samples of all clients together, and those that were held out of them."""
        return self.data.train

    @property
    def test(self) -> Pair | None:
        """The test samples, which no client holds; None where there are none."""
        return self.data.test if self.data.test is not None and len(self.data.test[1]) else None

    @property
    def classes(self) -> Sequence[Any]:
        """The names of the classes."""
        return self.data.classes

    @property
    def validation(self) -> Pair:
        """The samples held out for validation, which no client holds."""
        if not len(self._held["validation"]):
            raise FedflatError("no sample is held out for validation; say Federation(..., validation=0.1)")
        return self._rows(torch.from_numpy(self._held["validation"]))

    def client_test(self, client: int) -> Pair:
        """The samples held out for a client's own test, as the client sees them."""
        client = range(len(self))[client]
        of = getattr(self.data, "test_clients", None)
        if self._tests is None and self._ids is not None and of is not None and self.data.test is not None:
            rows = torch.from_numpy(np.flatnonzero(np.asarray(of) == self._ids[self.parts[client][0]]))
            x, y = self.data.test
            return (x[rows] if (skew := self.skew(client)) is None else skew(x[rows], rows - len(of))), y[rows]
        if self._tests is None:
            raise FedflatError("no sample is held out for the clients' own tests; say Federation(..., client_test=0.2)")
        return self._rows(self._tests[client], self.skew(client))

    def skew(self, client: int) -> Skew | None:
        """What this client's inputs go through, if anything."""
        levels = {"noise": 0.0, "rotate": 0.0, **self._skew}
        return Skew(**levels, seed=self.seed, client=client) if self._skew else None

    @cached_property
    def repeated(self) -> int:
        """How many samples are held more than once."""
        return int((self._uses > 1).sum())

    @cached_property
    def unused(self) -> int:
        """How many samples are neither held by a client nor held out."""
        return int((self._uses[self.kept] == 0).sum())

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, client: int) -> Pair: ...
    @overload
    def __getitem__(self, client: slice) -> list[Pair]: ...
    def __getitem__(self, client: int | slice) -> Pair | list[Pair]:
        if isinstance(client, slice):
            return [self[i] for i in range(len(self))[client]]
        return self._rows(self.parts[client], self.skew(range(len(self))[client]))

    def __repr__(self) -> str:
        name = getattr(self.data, "name", type(self.data).__name__)
        sizes = [len(part) for part in self.parts]
        told = {
            "repeated": self.repeated,
            "unused": self.unused,
            "for validation": len(self._held["validation"]),
            "for clients' tests": len(self._held["client_test"]),
        }
        more = "".join(f", {count} {what}" for what, count in told.items() if count)
        return (
            f"Federation({name}, {self.partition}, "
            f"{len(sizes)} clients with {min(sizes)} to {max(sizes)} samples{more})"
        )

    @property
    def _uses(self) -> Tensor:
        return torch.cat(self.parts).bincount(minlength=len(self.data.train[1]))

    def _rows(self, rows: Tensor, skew: Skew | None = None) -> Pair:
        x, y = self.data.train
        return (x[rows] if skew is None else skew(x[rows], rows)), y[rows]

    def _hold_out(self, kept: Ints, labels: Ints, shares: dict[str, float], groups: Any) -> Ints:
        """What is left for training; `_held` has the rest."""
        together = None if groups is None else coded(groups, len(labels), "groups")[0]
        classes = np.unique(labels, return_inverse=True)[1]
        total = len(kept)
        for name, share in shares.items():
            if not share:
                continue
            inside = within if name == "client_test" and self._owners is not None else hold_out
            strata = classes if inside is hold_out or self._owners is None else self._owners
            codes = np.unique(strata[kept], return_inverse=True)[1]
            some = None if together is None else together[kept]
            held = inside(kept, codes, share * total / len(kept), some, generator(self.seed, name))
            if not len(held):
                raise FedflatError(f"{name}={share:g} holds out none of {total} samples; take a larger share")
            self._held[name], kept = held, np.setdiff1d(kept, held, assume_unique=True)
        if not len(kept):
            raise FedflatError("validation and client_test leave nothing to train on")
        return kept

    def _own_tests(self, labels: Ints, share: float) -> list[Tensor]:
        pool = self._held["client_test"]
        if self._owners is None:
            parts = [part.numpy() for part in self.parts]
            ratio = len(pool) / len(self.kept)
            rows = aligned(parts, labels, pool, ratio, generator(self.seed, "client_test", 1))
            return [torch.from_numpy(part) for part in rows]
        pool = pool[np.argsort(self._owners[pool], kind="stable")]
        of = self._owners[pool]
        clients = [self._owners[int(part[0])] for part in self.parts]
        return [torch.from_numpy(pool[slice(*np.searchsorted(of, [c, c + 1]))]) for c in clients]
