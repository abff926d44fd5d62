"""Rows of data from files and folders, with an evaluation split of their own or a held-out tenth."""

import json
from pathlib import Path

import pytest

from agentrl.env.rows import read_rows
from agentrl.errors import EnvError


def write(path: Path, numbers: range) -> str:
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
    return str(path)


def numbers(data: str, split: str) -> list[int]:
    return [row["n"] for row in read_rows(data, split)]  # type: ignore[arg-type]


def test_a_single_file_holds_out_each_tenth_row(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", range(25))
    assert numbers(data, "eval") == [9, 19]
    assert numbers(data, "train") == [n for n in range(25) if n not in (9, 19)]


def test_parquet_is_read_as_well(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": list(range(12))}), tmp_path / "rows.parquet")
    assert numbers(str(tmp_path / "rows.parquet"), "eval") == [9]


def test_a_folder_brings_its_own_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", range(12))
    write(tmp_path / "test.jsonl", range(100, 103))
    assert numbers(str(tmp_path), "train") == list(range(12))
    assert numbers(str(tmp_path), "eval") == [100, 101, 102]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"give --env\.data"):
        numbers("", "train")
    with pytest.raises(EnvError, match="there is no file or folder"):
        numbers(str(tmp_path / "none.jsonl"), "train")
    other = tmp_path / "rows.txt"
    other.touch()
    with pytest.raises(EnvError, match=r"rows are read from \.jsonl"):
        numbers(str(other), "train")
