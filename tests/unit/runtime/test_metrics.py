"""metrics.jsonl survives kills and full disks: whole lines stay, torn ones go, and nobody reads past damage in silence."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.errors import StoreError
from agentrl.runtime.metrics import PIECE_BYTES, MetricsLog, read_metrics, standing


def test_a_torn_line_is_taken_out_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind":"step","step":1}\n{"kind":"ste')
    assert [line["step"] for line in read_metrics(path)] == [1]
    log = MetricsLog(path)
    assert path.read_bytes().endswith(b'"ste'), "opened by the first line, so that who does not hold the run leaves it alone"
    log.write("step", 0.0, step=2)
    log.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_what_a_resume_took_back_stands_no_more() -> None:
    told = [("eval", 0, 0.1), ("step", 1, 0.0), ("eval", 2, 0.2), ("eval", 4, 0.4), ("step", 2, 0.0), ("eval", 2, 0.3)]
    lines = [{"kind": kind, "step": step, "reward": reward} for kind, step, reward in told]
    assert [(line["step"], line["reward"]) for line in standing(lines, "eval")] == [(0, 0.1), (2, 0.3)]


@pytest.mark.parametrize("damage", [b"\x00\x00\x00\n", b'{"kind":"ste{"kind":"step","step":2}\n', b"7\n"])
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind":"step","step":1}\n' + damage)
    with pytest.raises(StoreError, match=r"read line 2 of .*metrics.jsonl \(remove that line to go on\)"):
        list(read_metrics(path))


def test_a_torn_line_longer_than_a_piece_goes_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind":"step","step":1}\n' + b"x" * (2 * PIECE_BYTES))
    log = MetricsLog(path)
    log.write("step", 0.0, step=2)
    log.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_a_line_that_does_not_fit_says_what_to_do_and_is_taken_out_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write("step", 0.0, step=1)
    with room_for(path.stat().st_size + 10), pytest.raises(StoreError, match=r"free disk space or fix the disk, then resume the run"):
        log.write("step", 0.0, step=2)
    log.close()
    assert [line["step"] for line in read_metrics(path)] == [1]
    resumed = MetricsLog(path)
    resumed.write("step", 0.0, step=2)
    resumed.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file of this process grows beyond `nbytes` meanwhile, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
