"""Own data in folders: CLASS/image, CLIENT/CLASS/image, CLIENT.npz, CLIENT.csv; train/ and test/ above them if need be.

Classes, clients and images are taken in the order of their names. An .npz file holds arrays x and y (never pickled
objects); a .csv file one sample a line, numbers only, the label in the column named label, class, target or y, else in
the last one.
"""

__all__ = ["folder"]

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedflat.data.found import Found, gathered, pixels
from fedflat.errors import FedflatError

Result = TypeVar("Result")

IMAGES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
TESTS = ("test", "val", "valid", "validation")
LABELS = ("label", "class", "target", "y")
LOOKED_AT = 64  # images whose headers say whether all are grey


def folder(root: Path, size: int | None, stream: bool | None) -> Found:
    """What a folder holds."""
    if not root.is_dir():
        raise FedflatError(f"there is no folder {root}")
    if (root / "train").is_dir():
        train = folder(root / "train", size, stream)
        for name in TESTS:
            if (root / name).is_dir():
                return train.tested(folder(root / name, size, stream))
        return train
    files = sorted(path for path in root.iterdir() if path.suffix.lower() in (".npz", ".csv"))
    if files:
        return _of_files(files)
    if classes := {path.name: images for path in _folders(root) if (images := _images(path))}:
        found = [(image, name, None) for name, images in classes.items() for image in images]
    else:
        found = [
            (image, path.name, client.name)
            for client in _folders(root)
            for path in _folders(client)
            for image in _images(path)
        ]
    if not found:
        raise FedflatError(
            f"{root} holds no data that fedflat knows: CLASS/image, CLIENT/CLASS/image, CLIENT.npz or CLIENT.csv"
        )
    paths, labels, clients = zip(*found, strict=True)
    owners = None if clients[0] is None else np.array(clients)
    return Found(_decoded(paths, size, stream), np.array(labels), sorted(set(labels)), owners)


def _decoded(paths: Sequence[Path], size: int | None, stream: bool | None) -> Any:
    step = max(1, len(paths) // LOOKED_AT)
    grey = all(_opened(path, lambda image: image.mode in ("1", "L")) for path in paths[::step])

    def one(row: int) -> torch.Tensor:
        return _opened(paths[row], lambda image: pixels(image, "L" if grey else "RGB", size))

    digest = hashlib.sha256(
        repr([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]).encode()
    )
    return gathered(one, len(paths), f"{paths[0].parent.parent} {size} {digest.hexdigest()}", stream)


def _opened(path: Path, use: Callable[[Image.Image], Result]) -> Result:
    try:
        with Image.open(path) as image:
            return use(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FedflatError(f"{path} cannot be read as an image: {error}") from None


def _of_files(files: Sequence[Path]) -> Found:
    pairs = [_table(path) if path.suffix.lower() == ".csv" else _archive(path) for path in files]
    shapes = {x.shape[1:] for x, _ in pairs}
    if len(shapes) > 1:
        raise FedflatError(f"{files[0].parent}: samples differ in shape from file to file: {sorted(map(str, shapes))}")
    clients = np.repeat([path.stem for path in files], [len(y) for _, y in pairs])
    x = torch.from_numpy(np.concatenate([x for x, _ in pairs]))
    return Found(x, np.concatenate([y for _, y in pairs]), None, clients)


def _archive(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (OSError, ValueError, KeyError) as error:
        raise FedflatError(f"{path} has to hold two arrays of numbers, x and y: {error}") from None
    if len(x) != len(y):
        raise FedflatError(f"{path}: x has {len(x)} samples, but y has {len(y)}")
    return x, y


def _table(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    with path.open() as file:
        head = [cell.strip().strip('"').lower() for cell in file.readline().split(",")]
    named = not all(_is_number(cell) for cell in head)
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=int(named), ndmin=2)
    except ValueError as error:
        raise FedflatError(f"{path} is no table of numbers: {error}") from None
    column = next((head.index(name) for name in LABELS if name in head), len(head) - 1)
    y = table[:, column]
    whole = bool((y % 1 == 0).all())
    return np.delete(table, column, axis=1).astype(np.float32), y.astype(np.int64) if whole else y.astype(np.float32)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.suffix.lower() in IMAGES and not path.name.startswith("."))
