"""A file from its official source: into a file beside its place, checked, and only then renamed to it."""

__all__ = ["Bar", "download"]

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self, cast

from fedflat.data.catalogue import File
from fedflat.data.verify import check
from fedflat.errors import FedflatError

log = logging.getLogger(__name__)

CHUNK = 1 << 20
PATIENCE = 30  # seconds without a byte
MOST = 2_000_000_000  # bytes of a file of unknown size


def download(files: Sequence[File], folder: Path, fresh: bool = False) -> None:
    """Fetch the files that a folder lacks, or all of them afresh; one that is wrong or cut short replaces nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedflatError(f"nothing can be put into {folder}: {error.strerror}") from None
    for file in files if fresh else [file for file in files if not (folder / file.name).exists()]:
        part = folder / f".{file.name}.{os.getpid()}.part"
        try:
            _fetch(file, part, folder)
            check(part, file)
            os.replace(part, folder / file.name)
        except FedflatError as error:
            raise FedflatError(
                str(error).replace(str(part), f"{file.urls[0]}, as it arrived,").partition("; ")[0]
            ) from None
        finally:
            part.unlink(missing_ok=True)


def _fetch(file: File, part: Path, folder: Path) -> None:
    import requests
    from pooch import HTTPDownloader

    failures: list[str] = []
    for url in file.urls:
        log.info("downloading %s", url)
        try:
            with part.open("wb") as stream, Bar(file.name, file.size) as bar:
                # the bytes as they are published, not as a server would compress them again
                get = HTTPDownloader(
                    progressbar=False, chunk_size=CHUNK, timeout=PATIENCE, headers={"Accept-Encoding": "identity"}
                )
                get(url, cast(Any, _Counted(stream, bar, file)), cast(Any, None))
            return
        except (requests.RequestException, OSError) as error:
            failures.append(f"{url}: {_reason(error)}")
    raise FedflatError(
        f"{file.name} cannot be downloaded ({', '.join(failures)}): "
        f"fetch it from {file.urls[0]} yourself and put it into {folder}"
    )


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"status {response.status_code}"
    return {"ConnectTimeout": "no answer", "ReadTimeout": "no answer", "ConnectionError": "no connection"}.get(
        type(error).__name__, type(error).__name__
    )


class _Counted:
    """A file that shows how far it is, and grows no larger than it may."""

    def __init__(self, stream: IO[bytes], bar: "Bar", file: File) -> None:
        self.stream, self.bar, self.name, self.left = stream, bar, file.name, file.size or MOST

    def write(self, chunk: bytes) -> None:
        self.left -= len(chunk)
        if self.left < 0:
            raise FedflatError(f"{self.name} is longer than what was published")
        self.stream.write(chunk)
        self.bar.update(len(chunk))

    def flush(self) -> None:
        self.stream.flush()


class Bar:
    """A progress bar on a terminal's stderr, and nothing elsewhere."""

    def __init__(self, what: str, total: int, unit: str = "bytes") -> None:
        self.progress: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

            count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
            self.progress = Progress(TextColumn(what), BarColumn(), count, console=Console(stderr=True), transient=True)
            self.task = self.progress.add_task(what, total=total or None)

    def __enter__(self) -> Self:
        if self.progress:
            self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress:
            self.progress.stop()

    def update(self, steps: int) -> None:
        """So many steps further."""
        if self.progress:
            self.progress.advance(self.task, steps)
