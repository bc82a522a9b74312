"""Small data sets in the official file formats, written as their publishers wrote them."""

import csv
import gzip
import io
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedflat.data.catalogue import SETS, Entry, File, Layout


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def without_digests(name, train, test, **changes) -> Entry:
    """The entry of a set for so many samples, whose files may hold anything."""

    def bare(file: File | None) -> File | None:
        return file and replace(file, size=0, digest="", contents="")

    entry = SETS[name]
    layouts = tuple(
        replace(layout, files=tuple(map(bare, layout.files)), archive=bare(layout.archive)) for layout in entry.layouts
    )
    return replace(entry, train=train, test=test, layouts=layouts, **({"balanced": False} | changes))


def vouched(entry: Entry, layout: int, **digests: str) -> Entry:
    """The entry, with digests for files of a layout, by the place of the file or `archive`."""
    old = entry.layouts[layout]
    files = tuple(replace(file, digest=digests.get(f"file{i}", "")) for i, file in enumerate(old.files))
    archive = old.archive and replace(old.archive, digest=digests.get("archive", ""))
    layouts: list[Layout] = list(entry.layouts)
    layouts[layout] = replace(old, files=files, archive=archive)
    return replace(entry, layouts=tuple(layouts))


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(folder: Path, train=6, test=3, zipped=True, seed=0):
    """Images and labels as they were written, and the files of it."""
    arrays = {
        "train-images-idx3-ubyte": pixels(train, 28, 28, seed=seed),
        "train-labels-idx1-ubyte": pixels(train, seed=seed + 1) % 10,
        "t10k-images-idx3-ubyte": pixels(test, 28, 28, seed=seed + 2),
        "t10k-labels-idx1-ubyte": pixels(test, seed=seed + 3) % 10,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    return list(arrays.values())


def cifar_rows(n, labels=1, seed=0):
    rows = pixels(n, labels + 3072, seed=seed)
    rows[:, :labels] %= 10
    return rows


def cifar10_binary(folder: Path, n=4):
    folder.mkdir(parents=True, exist_ok=True)
    batches = [cifar_rows(n, seed=seed) for seed in range(6)]
    for name, rows in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], batches, strict=True):
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return batches


def python2_pickle(entries: dict[str, object]) -> bytes:
    """What cPickle of Python 2 wrote, protocol 2, for texts, lists of small numbers and one array of bytes."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def any_(value: object) -> bytes:
        match value:
            case str():
                return text(value.encode())
            case int():
                return number(value)
            case list():
                return b"](" + b"".join(map(any_, value)) + b"e"
            case np.ndarray():
                dtype = b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR"
                dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
                shape = b"(" + b"".join(map(number, value.shape)) + b"t"
                begin = (
                    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + text(b"b") + b"tR"
                )
                return begin + b"(" + number(1) + shape + dtype + b"\x89" + text(value.tobytes()) + b"tb"
        raise TypeError(value)

    return b"\x80\x02}(" + b"".join(any_(part) for pair in entries.items() for part in pair) + b"u."


def cifar10_python(folder: Path, n=4):
    folder.mkdir(parents=True, exist_ok=True)
    batches = [cifar_rows(n, seed=seed) for seed in range(6)]
    for name, rows in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], batches, strict=True):
        held = {"batch_label": name, "labels": rows[:, 0].tolist(), "data": rows[:, 1:].copy(), "filenames": ["a.png"]}
        (folder / name).write_bytes(python2_pickle(held))
    return batches


def tar(file: Path, contents: dict[str, bytes]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file


def zip_(file: Path, contents: dict[str, bytes]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return file


def picture(array: np.ndarray, kind="PNG") -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return stream.getvalue()


def ag_news(folder: Path, train: list[tuple[int, str, str]], test: list[tuple[int, str, str]]):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train.csv", train), ("test.csv", test)):
        with (folder / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)


def npz(file: Path, **arrays: np.ndarray) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **arrays)
    return file
