"""Whether a file is the one that was published; what is wrong with it is one sentence that names it."""

__all__ = ["check", "damaged", "digest"]

import gzip
import hashlib
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from fedflat.data.catalogue import File
from fedflat.errors import FedflatError

CHUNK = 1 << 20


def check(path: Path, file: File) -> None:
    """Refuse a file that is not the published one, by its size and its digest where they are known."""
    if (size := path.stat().st_size) == 0:
        raise damaged(path, "is empty")
    with path.open("rb") as stream:
        if stream.read(256).lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
            raise damaged(path, f"is a web page that was saved as {file.name}")
    if file.contents:
        if digest(path, file.contents, unzip=path.suffix == ".gz") != file.contents:
            raise damaged(path, f"does not hold what was published: {_kind(file.contents)} differs")
    elif file.size and size != file.size:
        raise damaged(path, f"has {size:,} bytes, but {file.size:,} were published")
    elif file.digest and digest(path, file.digest) != file.digest:
        raise damaged(path, f"is not the file that was published: {_kind(file.digest)} differs")


def damaged(path: Path, what: str) -> FedflatError:
    """The sentence about a file that cannot be used, and what to do about it."""
    return FedflatError(
        f"{path} {' '.join(what.split())}; remove it, and load the data set again or put the right file there"
    )


def digest(path: Path, like: str, unzip: bool = False) -> str:
    """The digest of a file, or of what it unzips to, by the method of another digest."""
    hasher = hashlib.new(like.partition(":")[0], usedforsecurity=False)
    with suppress(EOFError, gzip.BadGzipFile, zlib.error), _opened(path, unzip) as stream:  # then it differs, too
        while chunk := stream.read(CHUNK):
            hasher.update(chunk)
    return f"{hasher.name}:{hasher.hexdigest()}"


def _opened(path: Path, unzip: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if unzip else path.open("rb")


def _kind(text: str) -> str:
    return {"md5": "its MD5", "sha256": "its SHA-256"}[text.partition(":")[0]]
