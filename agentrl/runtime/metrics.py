"""metrics.jsonl: one JSON object a line, flushed as it is written, so that a killed run leaves every whole line.

A line that a full disk or a kill tore is taken out before anything follows it: only the last line can ever be torn.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from agentrl.errors import StoreError, boundary

PIECE_BYTES = 65536
_decode: Callable[[bytes], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode


class MetricsLog:
    """Appends to a run's metrics. Every line has `kind` ("step", "eval", …) and `at` (seconds since the epoch).

    The file is opened by the first line, which only the holder of the run's lock gets to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def write(self, kind: str, at: float, **values: Any) -> None:
        """Raises StoreError when the line cannot be written: a run whose record has holes would be told wrongly."""
        line = msgspec.json.encode({"kind": kind, "at": round(at, 3), **values}) + b"\n"
        with boundary(StoreError, f"write {self._path} (free disk space or fix the disk, then resume the run)"):
            if self._file is None:
                self._file = _open_after_whole_lines(self._path)
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines in order; a torn last line is the end. Raises StoreError, naming the line, for what is no JSON object."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            with boundary(StoreError, f"read line {number} of {path} (remove that line to go on)"):
                values = _decode(line)
            yield values


def standing(lines: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those of a kind, without those that a resume took back: a later line of the same or an earlier step replaces them."""
    found: list[dict[str, Any]] = []
    for line in lines:
        if line["kind"] == kind:
            while found and found[-1]["step"] >= line["step"]:
                found.pop()
            found.append(line)
    return found


def _open_after_whole_lines(path: Path) -> BinaryIO:
    file = path.open("a+b", buffering=0)
    at = file.seek(0, os.SEEK_END)
    whole = 0
    while at and not whole:
        start = max(0, at - PIECE_BYTES)
        file.seek(start)
        newline = file.read(at - start).rfind(b"\n")
        whole, at = (start + newline + 1 if newline >= 0 else 0), start
    file.truncate(whole)
    return file
