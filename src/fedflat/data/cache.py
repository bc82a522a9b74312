"""Where data sets lie: in the folder FEDFLAT_DATA, or else below the user's cache.

An official file counts wherever people put it: in that folder itself, in a subfolder with the set's name in any
spelling (and torchvision's `raw` below it), or in the folder that the official archive unpacks to.
"""

__all__ = ["Found", "find", "home", "obtain", "own_folder"]

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedflat.data.archives import unpack
from fedflat.data.catalogue import SETS, Entry, Layout
from fedflat.data.download import download
from fedflat.data.verify import check, digest
from fedflat.errors import FedflatError
from fedflat.names import canonical


class Found(NamedTuple):
    """A layout that is here: the folder of its files, or its archive."""

    layout: Layout
    path: Path


def home() -> Path:
    """The folder that holds the data sets."""
    if told := os.environ.get("FEDFLAT_DATA"):
        return Path(told).expanduser()
    import pooch

    return Path(pooch.os_cache("fedflat"))


def own_folder(entry: Entry) -> Path:
    """The set's own folder, where its files are put."""
    return home() / entry.name


def find(entry: Entry) -> Found | None:
    """The set's files, if they are here: unpacked rather than in an archive."""
    places = list(_places(entry))
    for layout in entry.layouts:
        for place in places:
            for folder in dict.fromkeys((place / layout.folder, place)):
                if _holds(folder, layout) and _is_of(entry, layout, folder):
                    return Found(layout, folder)
    for layout in entry.layouts:
        for place in places:
            if layout.archive and (place / layout.archive.name).is_file():
                return Found(layout, place / layout.archive.name)
    return None


def obtain(entry: Entry, fresh: bool = False) -> Found:
    """The set's files, unpacked and checked; they are downloaded if they are not here, or if fresh ones are wanted."""
    found = None if fresh else find(entry)
    if found is None:
        layout = entry.layouts[0]
        folder = own_folder(entry)
        download(layout.downloads, folder, fresh)
        found = Found(layout, folder / layout.archive.name if layout.archive else folder)
    layout, path = found
    if path.is_file() and layout.archive:
        if layout.folders:
            return found  # pictures are decoded from the archive, which is checked when that is done
        check(path, layout.archive)
        try:
            unpack(path, path.parent / layout.folder, layout.limit, fresh)
        except OSError as error:
            raise FedflatError(f"{path} cannot be unpacked beside itself: {error.strerror or error}") from None
        found = Found(layout, path.parent / layout.folder)
    for file in layout.files:
        check(found.path / file.name, file)
    return found


def _places(entry: Entry) -> Iterator[Path]:
    root = home()
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and canonical(folder.name) == canonical(entry.name):
                yield from (folder, folder / "raw")
        yield root


def _holds(folder: Path, layout: Layout) -> bool:
    if layout.folders:
        return folder != home() and all((folder / name).is_dir() for name in layout.folders)
    return all((folder / file.name).is_file() for file in layout.files)


def _is_of(entry: Entry, layout: Layout, folder: Path) -> bool:
    """In the folder of all sets, names that several sets use, or that are any word, say less than the contents do."""
    if layout.folders or folder != home():
        return True
    last = layout.files[-1]
    path = folder / last.name
    if layout.folder:
        return bool(last.digest) and digest(path, last.digest) == last.digest
    others = {file.contents for other in SETS.values() if other is not entry for file in other.layouts[0].files}
    return not last.contents or digest(path, last.contents, unzip=path.suffix == ".gz") not in others
