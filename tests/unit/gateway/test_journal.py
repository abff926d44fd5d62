"""The journal survives kills and full disks; blobs appear whole or not at all."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from agentrl.episode import EpisodeKey, EpisodeRecord, Sampling, Span, Turn, encode_turn, read_record, read_turns
from agentrl.errors import StoreError
from agentrl.gateway.journal import Journal
from agentrl.gateway.store import EpisodeStore


def turn(id: str) -> Turn:
    return Turn(
        id=id,
        agent_run="a",
        parent=None,
        prompt_ids=np.asarray([1, 2], np.int32),
        completion_ids=np.asarray([3], np.int32),
        mask=np.asarray([True]),
        sampler_logprobs=np.asarray([-0.5], np.float32),
        spans=(Span(0, 0, 1),),
        kv_oldest_version=0,
        sampling=Sampling(max_tokens=1),
        finish_reason="stop",
    )


def record(id: str) -> EpisodeRecord:
    return EpisodeRecord(id=id, key=EpisodeKey(0, "t", 0), split="train", env="e", env_version="1", task={})


def test_turns_of_an_episode_outlive_the_process(tmp_path: Path) -> None:
    for id in ("t1", "t2"):
        Journal(tmp_path).append("e/1", turn(id))
    Journal(tmp_path).append("e/2", turn("t3"))
    assert [found.id for found in Journal(tmp_path).read("e/1")] == ["t1", "t2"]
    Journal(tmp_path).drop("e/1")
    assert list(Journal(tmp_path).read("e/1")) == []


@pytest.mark.parametrize("kept", [3, 9, len(encode_turn(turn("t2"))) - 1])
def test_a_torn_tail_ends_the_turns(tmp_path: Path, kept: int) -> None:
    journal = Journal(tmp_path)
    journal.append("e", turn("t1"))
    with next(tmp_path.iterdir()).open("ab") as file:
        file.write(encode_turn(turn("t2"))[:kept])
    assert [found.id for found in journal.read("e")] == ["t1"]


def test_a_full_disk_says_so_and_leaves_no_torn_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, write = Journal(tmp_path), os.write
    journal.append("e", turn("t1"))
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:20]))
    with pytest.raises(StoreError, match="disk is full"):
        journal.append("e", turn("t2"))

    def no_space(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(StoreError, match="No space left on device; free some disk space"):
        journal.append("e", turn("t2"))
    monkeypatch.undo()
    journal.append("e", turn("t3"))
    assert [found.id for found in journal.read("e")] == ["t1", "t3"]


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_blobs_on_any_file_system(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}{tmp_path}/run"
    handle, nbytes = EpisodeStore(url).write(record("e/1"), [turn("t1"), turn("t2")])
    with EpisodeStore(url).open(handle) as file:
        assert read_record(file) == record("e/1")
        assert [found.id for found in read_turns(file)] == ["t1", "t2"]
        assert file.tell() == nbytes


def test_a_blob_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    store = EpisodeStore(str(tmp_path))

    def torn() -> object:
        yield turn("t1")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match=r"write episode e to .*No space left"):
        store.write(record("e"), torn())  # type: ignore[arg-type]
    assert list((tmp_path / "episodes").iterdir()) == []
    with pytest.raises(StoreError, match="read episode blob"):
        store.open("episodes/e.episode")
