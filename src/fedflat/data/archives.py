"""Archives and folders read as a stream of members, from which nothing can leave its folder or swell without end.

A member is refused when its path is absolute or climbs with `..`, when it is a link, a device or encrypted, and when
all members together hold more than the limit. Nothing is ever extracted by name: `unpack` writes plain files only,
into a new folder that takes its place when all of it is there.
"""

__all__ = ["members", "unpack"]

import gzip
import io
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from fedflat.data.verify import damaged
from fedflat.errors import FedflatError

BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)

Member = tuple[PurePosixPath, IO[bytes]]


def members(source: Path, limit: int) -> Iterator[Member]:
    """The plain files of a .tar.gz or .zip archive or a folder, each with a stream to be read at once."""
    if source.is_dir():
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            with path.open("rb") as stream:
                yield PurePosixPath(path.relative_to(source).as_posix()), stream
        return
    try:
        yield from (_of_zip if zipfile.is_zipfile(source) else _of_tar)(source, limit)
    except BROKEN as error:
        raise damaged(source, f"is cut short or no archive ({error or type(error).__name__})") from None


def unpack(source: Path, folder: Path, limit: int, fresh: bool = False) -> None:
    """Write the members below the folder's name into the folder, all or none; what it holds stays, unless `fresh`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        unpacked = Path(temporary) / folder.name
        for path, stream in members(source, limit):
            if folder.name in path.parts[:-1]:
                target = unpacked.joinpath(*path.parts[path.parts.index(folder.name) + 1 :])
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as out:
                    shutil.copyfileobj(stream, out, 1 << 20)
        if not unpacked.is_dir():
            raise damaged(source, f"holds no folder {folder.name}")
        try:
            os.replace(unpacked, folder)
        except OSError:  # the folder is there, perhaps because another process was faster
            for path in [path for path in unpacked.rglob("*") if path.is_file()]:
                target = folder / path.relative_to(unpacked)
                target.parent.mkdir(parents=True, exist_ok=True)
                if fresh or not target.exists():
                    os.replace(path, target)


def _of_tar(source: Path, limit: int) -> Iterator[Member]:
    with gzip.open(source) as unzipped:
        capped = _Capped(cast(IO[bytes], unzipped), source, limit)
        with tarfile.open(fileobj=io.BufferedReader(capped, 1 << 20), mode="r|", bufsize=1 << 20) as archive:
            for info in archive:
                path = _safe(source, info.name)
                if info.isdir():
                    continue
                stream = archive.extractfile(info) if info.isreg() else None
                if stream is None:
                    raise _refused(source, f"holds {info.name!r}, which is a link or a device")
                yield path, stream


def _of_zip(source: Path, limit: int) -> Iterator[Member]:
    with zipfile.ZipFile(source) as archive:
        infos = archive.infolist()
        if (size := sum(info.file_size for info in infos)) > limit:
            raise _too_large(source, limit, size)
        for info in sorted(infos, key=lambda info: info.filename):
            path = _safe(source, info.filename)
            if info.is_dir():
                continue
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise _refused(source, f"holds {info.filename!r}, which is a link or a device")
            if info.flag_bits & 1:
                raise _refused(source, f"holds {info.filename!r}, which is encrypted")
            with archive.open(info) as stream:
                yield path, stream


def _safe(source: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise _refused(source, f"holds {name!r}, which leads out of its folder")
    return path


def _refused(source: Path, what: str) -> FedflatError:
    return damaged(source, f"is not safe to unpack: it {what}")


def _too_large(source: Path, limit: int, size: int | None = None) -> FedflatError:
    found = "more" if size is None else f"{size:,} bytes"
    return damaged(source, f"is not safe to unpack: it swells to {found}, beyond the {limit:,} bytes of this data set")


class _Capped(io.RawIOBase):
    """A stream that ends in an error rather than beyond a limit; headers and padding of a tar count, too."""

    def __init__(self, stream: IO[bytes], source: Path, limit: int) -> None:
        self.stream, self.source, self.limit, self.left = stream, source, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        chunk = self.stream.read(min(len(buffer), 1 << 20))
        self.left -= len(chunk)
        if self.left < 0:
            raise _too_large(self.source, self.limit)
        buffer[: len(chunk)] = chunk
        return len(chunk)
