"""MedMNIST: an .npz of {train,val,test}_{images,labels}, uint8, images N,28,28 or N,28,28,3, labels N,1.

As in FedSoL's tables, training and validation images together are the training set.
"""

__all__ = ["read"]

import zipfile
import zlib
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from fedflat.data.cache import Found
from fedflat.data.catalogue import Entry
from fedflat.data.dataset import Dataset
from fedflat.data.verify import damaged


def read(entry: Entry, found: Found) -> Dataset:
    """Training with validation, and test."""
    path = found.path / found.layout.files[0].name
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > found.layout.limit:
                raise damaged(path, f"swells beyond the {found.layout.limit:,} bytes of this data set")
            train, val, test = (_pair(path, archive, split) for split in ("train", "val", "test"))
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise damaged(path, f"is cut short or not an .npz of MedMNIST ({error})") from None
    together = torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]])
    return Dataset(entry.name, together, test, entry.classes)


def _pair(path: Path, archive: zipfile.ZipFile, split: str) -> tuple[Tensor, Tensor]:
    x, y = (torch.from_numpy(_array(path, archive, f"{split}_{what}.npy")) for what in ("images", "labels"))
    if x.ndim not in (3, 4) or y.shape != (len(x), 1):
        raise damaged(path, f"has {split} images of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}")
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous(), y[:, 0].long()


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[np.uint8]:
    """An array of bytes that is as long as its header says: nothing is allocated on its word, and no object is read."""
    with archive.open(name) as stream:
        try:
            version = npy.read_magic(stream)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, by_columns, dtype = read_header(stream)
        except ValueError as error:
            raise damaged(path, f"holds {name}, which is no array ({error})") from None
        data = stream.read()
    if dtype != np.uint8 or prod(shape) != len(data):
        raise damaged(path, f"holds {name} of {dtype}, {shape}, in {len(data):,} bytes")
    return np.frombuffer(bytearray(data), np.uint8).reshape(shape, order="F" if by_columns else "C")
