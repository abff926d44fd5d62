"""metrics.jsonl: one JSON object a line, flushed as it is written, so that a killed run leaves every whole line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec


class MetricsLog:
    """Appends to a run's metrics. Every line has `kind` ("step", "eval", …) and `at` (seconds since the epoch)."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("ab", buffering=0)

    def write(self, kind: str, at: float, **values: Any) -> None:
        self._file.write(msgspec.json.encode({"kind": kind, "at": round(at, 3), **values}) + b"\n")

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines in order; a torn last line is the end."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield msgspec.json.decode(line)
