"""What the data sets are: the entries of catalogue.toml."""

__all__ = ["SETS", "Entry", "File", "Layout"]

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class File:
    """A file as it is published."""

    name: str
    size: int = 0  # bytes; 0 where they are not known
    digest: str = ""
    contents: str = ""  # the digest of what it unzips to
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """One form in which a set is published: files in a folder, perhaps in an archive that holds the folder."""

    format: str
    folder: str = ""
    files: tuple[File, ...] = ()  # of the training set, then of the test set
    folders: tuple[str, ...] = ()  # in place of files: trees of images
    archive: File | None = None
    limit: int = 0  # the most bytes that it may unpack to

    @property
    def downloads(self) -> tuple[File, ...]:
        """The files that are fetched to have it."""
        return (self.archive,) if self.archive else self.files


@dataclass(frozen=True)
class Entry:
    """A data set; the first layout is the one that is downloaded."""

    name: str
    page: str
    vouched: str  # who publishes the digests of what is downloaded
    train: int
    test: int
    shape: tuple[int, ...]
    layouts: tuple[Layout, ...]
    classes: tuple[str, ...] = ()
    unnamed: int = 0  # classes whose names are in the files
    balanced: bool = False  # as many training samples of each class

    @property
    def count(self) -> int:
        """How many classes it has."""
        return len(self.classes) or self.unnamed

    @property
    def known(self) -> bool:
        """Whether everything that is downloaded has a digest."""
        return all(file.digest or file.contents for file in self.layouts[0].downloads)


def _entry(name: str, table: dict[str, Any]) -> Entry:
    layouts = [_layout(**layout) for layout in table.pop("layouts")]
    plain = [  # the files of idx are in use unzipped, too
        Layout("idx", files=tuple(File(file.name.removesuffix(".gz"), contents=file.contents) for file in layout.files))
        for layout in layouts
        if layout.format == "idx"
    ]
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Entry(name, layouts=(*layouts, *plain), **lists)


def _layout(
    urls: tuple[str, ...] = (),
    files: tuple[dict[str, Any], ...] = (),
    archive: dict[str, Any] | None = None,
    folders: tuple[str, ...] = (),
    **rest: Any,
) -> Layout:
    def file(fields: dict[str, Any]) -> File:
        return File(**fields, urls=tuple(url + fields["name"] for url in urls))

    return Layout(
        files=tuple(map(file, files)), archive=file(archive) if archive else None, folders=tuple(folders), **rest
    )


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SETS = {name: _entry(name, table) for name, table in _TABLES.items()}
