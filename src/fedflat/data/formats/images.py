"""CINIC-10 (PNG) and Tiny-ImageNet (JPEG), from the archive or from the folder that it unpacks to.

Samples are in the order of class and file name. Decoding takes a minute, so the pixels are kept beside the archive as
`decoded.safetensors`, with a digest of their own.
"""

__all__ = ["cinic", "tiny"]

import hashlib
import io
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from fedflat.data.archives import members
from fedflat.data.cache import Found, own_folder
from fedflat.data.catalogue import Entry
from fedflat.data.dataset import Dataset
from fedflat.data.download import Bar
from fedflat.data.verify import check, damaged
from fedflat.errors import FedflatError

log = logging.getLogger(__name__)

LARGEST = 1 << 20  # bytes of a picture's file
Decoded = tuple[dict[str, Tensor], tuple[str, ...]]


def cinic(entry: Entry, found: Found) -> Dataset:
    """{train,test}/<class>/*.png; the third part, `valid`, is left out, as in FedSoL's tables."""
    return _kept(entry, found, _cinic)


def tiny(entry: Entry, found: Found) -> Dataset:
    """train/<wnid>/images/*.JPEG, and val/images with val_annotations.txt as the test set; grey pictures become RGB."""
    return _kept(entry, found, _tiny)


def _cinic(entry: Entry, found: Found, bar: Bar) -> Decoded:
    piles = {split: _Pile(entry, found.path, count, bar) for split, count in _splits(entry, "train", "test")}
    for path, stream in members(found.path, found.layout.limit):
        match path.parts:
            case (*_, split, kind, name) if split in piles and kind in entry.classes and name.endswith(".png"):
                piles[split].add(path, stream, "PNG", (entry.classes.index(kind), name))
            case _:
                pass
    return _tensors(piles["train"], piles["test"], lambda label: cast(int, label)), entry.classes


def _tiny(entry: Entry, found: Found, bar: Bar) -> Decoded:
    piles = {split: _Pile(entry, found.path, count, bar) for split, count in _splits(entry, "train", "val")}
    texts: dict[str, str] = {}
    for path, stream in members(found.path, found.layout.limit):
        match path.parts:
            case (*_, "train", wnid, "images", name) if name.endswith(".JPEG"):
                piles["train"].add(path, stream, "JPEG", (wnid, name))
            case (*_, "val", "images", name) if name.endswith(".JPEG"):
                piles["val"].add(path, stream, "JPEG", (name, name))
            case (*_, name) if name in ("val_annotations.txt", "words.txt"):
                texts[name] = stream.read(16 * LARGEST).decode("utf-8", "replace")
            case _:
                pass
    annotated = dict(
        row[:2] for line in texts.get("val_annotations.txt", "").splitlines() if len(row := line.split("\t")) > 2
    )
    words = dict(row for line in texts.get("words.txt", "").splitlines() if len(row := line.split("\t")) == 2)
    wnids = sorted({str(wnid) for wnid, _ in piles["train"].keys})
    places = {wnid: place for place, wnid in enumerate(wnids)}

    def label(key: object) -> int:
        wnid = annotated.get(str(key), str(key))
        if wnid not in places:
            raise damaged(found.path, f"has no class for the picture {key}")
        return places[wnid]

    return _tensors(piles["train"], piles["val"], label), tuple(
        words.get(wnid, wnid).partition(",")[0] for wnid in wnids
    )


class _Pile:
    """The decoded pictures of one set, each with a key: what tells its class, and its name."""

    def __init__(self, entry: Entry, source: Path, count: int, bar: Bar) -> None:
        self.source, self.bar = source, bar
        self.pixels = torch.empty(count, *entry.shape, dtype=torch.uint8)
        self.keys: list[tuple[Any, str]] = []

    def add(self, path: PurePosixPath, stream: IO[bytes], kind: str, key: tuple[Any, str]) -> None:
        from PIL import Image

        if len(self.keys) == len(self.pixels):
            raise damaged(self.source, f"holds more than {len(self.pixels):,} pictures, with {path}")
        data = stream.read(LARGEST + 1)
        try:
            with Image.open(io.BytesIO(data), formats=[kind]) as image:
                if (found := (3, image.height, image.width)) != self.pixels.shape[1:] or len(data) > LARGEST:
                    raise damaged(self.source, f"holds {path} of {found[2]}x{found[1]} pixels in {len(data):,} bytes")
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise damaged(self.source, f"holds {path}, which is no {kind} picture ({error})") from None
        self.pixels[len(self.keys)] = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        self.keys.append(key)
        self.bar.update(1)

    def sorted(self, label: Callable[[object], int]) -> tuple[Tensor, Tensor]:
        if len(self.keys) < len(self.pixels):
            raise damaged(self.source, f"holds {len(self.keys):,} pictures where {len(self.pixels):,} were published")
        labels = [label(key) for key, _ in self.keys]
        order = sorted(range(len(labels)), key=lambda i: (labels[i], self.keys[i][1]))
        y = torch.tensor(labels)[order]
        return self.pixels if order == list(range(len(order))) else self.pixels[order], y


def _splits(entry: Entry, train: str, test: str) -> tuple[tuple[str, int], ...]:
    return (train, entry.train), (test, entry.test)


def _tensors(train: _Pile, test: _Pile, label: Callable[[object], int]) -> dict[str, Tensor]:
    (x, y), (x_test, y_test) = train.sorted(label), test.sorted(label)
    return {"train.x": x, "train.y": y, "test.x": x_test, "test.y": y_test}


def _kept(entry: Entry, found: Found, decode: Callable[[Entry, Found, Bar], Decoded]) -> Dataset:
    file = own_folder(entry) / "decoded.safetensors"
    tensors, classes = _read(file, entry) or _decoded(entry, found, decode, file)
    train, test = ((tensors[f"{split}.x"], tensors[f"{split}.y"]) for split in ("train", "test"))
    return Dataset(entry.name, train, test, classes)


def _decoded(entry: Entry, found: Found, decode: Callable[[Entry, Found, Bar], Decoded], file: Path) -> Decoded:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if found.path.is_file() and found.layout.archive:
        check(found.path, found.layout.archive)
    log.info("decoding %s, once", found.path)
    with warnings.catch_warnings(), Bar(entry.name, entry.train + entry.test, "pictures") as bar:
        warnings.filterwarnings("error", module="PIL")
        tensors, classes = decode(entry, found, bar)
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, part, {"sha256": _digest(tensors), "classes": "\n".join(classes)})
        part.replace(file)
    except (OSError, SafetensorError) as error:
        log.info("the decoded pictures are not kept: %s", error)
    return tensors, classes


def _read(file: Path, entry: Entry) -> Decoded | None:
    """The pixels that were kept, if they are still what they were."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(file, "pt") as held:
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
            told = held.metadata() or {}
        if told.get("sha256") == _digest(tensors) and len(tensors["train.y"]) == entry.train:
            return tensors, tuple(told["classes"].split("\n"))
    except (SafetensorError, KeyError, OSError) as error:
        raise FedflatError(f"{file} cannot be read ({error}); remove it, and it is made again") from None
    log.info("%s is damaged and made again", file)
    return None


def _digest(tensors: dict[str, Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(tensors[name].numpy().data)
    return hasher.hexdigest()
