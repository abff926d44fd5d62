"""Rows of data by the `datasets` package, streamed: nothing is downloaded whole, nothing is cached twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from agentrl.errors import EnvError, boundary

HOLD_OUT = 10
"""When the data has no evaluation split of its own, each tenth row is held out."""
_SPLITS = {"train": ("train", "training"), "eval": ("eval", "validation", "valid", "dev", "test")}
_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def read_rows(data: str, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """Raises EnvError if there is no such data. `data`: a hub name, a local file or a folder."""
    if not data:
        raise EnvError("this environment reads its tasks from data: give --env.data with a dataset name, a file or a folder")
    with boundary(EnvError, f"read {data}"):
        parts = _open(data)
    own = next((name for name in _SPLITS[split] if name in parts), None)
    held_out = not any(name in parts for name in _SPLITS["eval"])
    if own is None and not held_out:
        raise EnvError(f"{data} has no rows for {split}: its splits are {', '.join(parts)}")
    source = parts[own] if own is not None else next(iter(parts.values()))
    for index, row in enumerate(source):
        if not held_out or (index % HOLD_OUT == HOLD_OUT - 1) == (split == "eval"):
            yield dict(row)


def _open(data: str) -> dict[str, Any]:
    """Streams by split name."""
    import datasets

    path = Path(data)
    if path.is_file():
        if path.suffix not in _READERS:
            raise EnvError(f"{data}: rows are read from {', '.join(_READERS)} files")
        return {"all": datasets.load_dataset(_READERS[path.suffix], data_files=str(path), split="train", streaming=True)}
    if path.is_dir():
        return dict(datasets.load_dataset(str(path.resolve()), streaming=True))
    if path.suffix in _READERS or data.startswith((".", "/")):
        raise EnvError(f"there is no file or folder {data}")
    return dict(datasets.load_dataset(data, streaming=True))
