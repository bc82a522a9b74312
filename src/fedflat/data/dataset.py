"""What `load` returns: training and test samples as they were published, and whose they are where that is known."""

__all__ = ["Dataset"]

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples: x is uint8 NCHW, or int32 token ids of texts; y is int64 and indexes `classes`.

    Where the samples come from natural clients, `clients` and `test_clients` are the client of each sample, as places
    in `client_names`. Token ids are places in `vocabulary`.
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]
    clients: Tensor | None = None
    test_clients: Tensor | None = None
    client_names: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shape = "x".join(str(length) for length in self.train[0].shape[1:])
        unit = f"{shape} tokens" if self.vocabulary else shape
        natural = f", {len(self.client_names)} natural clients" if self.client_names else ""
        return (
            f"Dataset({self.name}: {len(self.train[1])} training and {len(self.test[1])} test samples "
            f"of {unit}, {len(self.classes)} classes{natural})"
        )
