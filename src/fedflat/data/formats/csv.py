"""AG News: rows of label (1 to 4), title and description, quoted; a text becomes the numbers of its words.

Words are torchtext's `basic_english`, as in the fastText runs of the papers: lower case, . , ( ) ! ? ' are words of
their own, quotes, colons and semicolons vanish (and so does the backslash that stands for a line break here). The
vocabulary is that of the training set, by frequency, after <pad> and <unk>; a text is its first 200 words, padded at
the end.
fastText averages the embeddings of the words that are not padding. It is given no bigrams.
"""

__all__ = ["read"]

import csv
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedflat.data.cache import Found
from fedflat.data.catalogue import Entry
from fedflat.data.dataset import Dataset
from fedflat.data.verify import damaged

PAD, UNKNOWN = 0, 1
MARKS = str.maketrans({**{mark: f" {mark} " for mark in ".,()!?'"}, **dict.fromkeys('":;\\', " ")})


def read(entry: Entry, found: Found) -> Dataset:
    """Both sets; words that only the test set uses are unknown."""
    train, test = (_rows(found.path / file.name, entry.count) for file in found.layout.files)
    counts = Counter(chain.from_iterable(words for _, words in train))
    vocabulary = ("<pad>", "<unk>", *sorted(counts, key=lambda word: (-counts[word], word)))
    numbers = {word: place for place, word in enumerate(vocabulary)}
    length = entry.shape[0]
    pairs = [
        (_padded((words for _, words in rows), len(rows), length, numbers), _labels(rows)) for rows in (train, test)
    ]
    return Dataset(entry.name, pairs[0], pairs[1], entry.classes, vocabulary=vocabulary)


def _rows(path: Path, classes: int) -> list[tuple[int, list[str]]]:
    rows: list[tuple[int, list[str]]] = []
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.reader(stream, strict=True):
                if len(row) != 3 or not row[0].isdecimal() or not 1 <= int(row[0]) <= classes:
                    raise damaged(path, f"has a row {len(rows) + 1} that is not a label, a title and a description")
                rows.append((int(row[0]) - 1, f"{row[1]} {row[2]}".lower().translate(MARKS).split()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, f"is not CSV ({error})") from None
    return rows


def _labels(rows: list[tuple[int, list[str]]]) -> Tensor:
    return torch.tensor([label for label, _ in rows])


def _padded(texts: Iterable[list[str]], count: int, length: int, numbers: dict[str, int]) -> Tensor:
    x = np.full((count, length), PAD, np.int32)
    for row, words in zip(x, texts, strict=True):
        found = [numbers.get(word, UNKNOWN) for word in words[:length]]
        row[: len(found)] = found
    return torch.from_numpy(x)
