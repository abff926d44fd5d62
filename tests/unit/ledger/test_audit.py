"""The audit passes a good journal and names what is wrong with a tampered one."""

import io
import sqlite3
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from agentrl.episode import EpisodeKey, EpisodeRecord, Sampling, Span, Turn, write_episode
from agentrl.errors import LedgerError
from agentrl.ledger import Ledger
from agentrl.ledger.audit import audit
from agentrl.ledger.entry import Checkpointed, Ended, Published, Refused, Rejected, Running, Served, Trained
from tests.unit.ledger.build import batch, issued, name, score, scored_group, scored_run


def good_run(folder: Path) -> None:
    """Two groups trained, one dropped, a frozen attempt issued again, a duplicate refused."""
    ledger = Ledger.open(folder / "ledger.sqlite")
    ledger.record(Published(0), Served(0))
    scored_group(ledger, "a", [0.0, 1.0], index=0)
    ledger.record(issued("b", 0, size=2, index=1), issued("b", 1, size=2, index=1))
    ledger.record(Running(name("b", 0), "w"))
    ledger.record(Rejected(name("b", 0), "frozen", final=False, fault=True), issued("b", 0, size=2, attempt=1, index=1))
    score(ledger, name("b", 0, 1), scored_run(name("b", 0, 1), 1.0, tokens=30))
    score(ledger, name("b", 1), scored_run(name("b", 1), 0.0, tokens=20))
    ledger.record(Refused(0, 2, "a", "duplicate"))
    scored_group(ledger, "c", [1.0, 1.0], index=3)
    ledger.record(Rejected(name("c", 0), "equal_rewards"), Rejected(name("c", 1), "equal_rewards"))
    ledger.record(batch(ledger, [[0], [1]], dropped=(2,)))
    ledger.record(Trained(1))
    ledger.record(Trained(2), Checkpointed(2, "checkpoints/2"))
    ledger.record(Ended("finished"))
    ledger.close()


def tamper(folder: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        db.execute("DROP TRIGGER IF EXISTS no_update")
        db.execute("DROP TRIGGER IF EXISTS no_delete")
        assert db.execute(statement, values).rowcount > 0


def test_a_good_run_is_clean_and_counted(tmp_path: Path) -> None:
    good_run(tmp_path)
    report = audit(tmp_path)
    assert report.problems == ()
    assert report.clean
    assert (report.tasks, report.members, report.attempts) == (3, 6, 7)
    assert (report.trained, report.waiting, report.in_flight, report.interrupted) == (4, 0, 0, 0)
    assert report.rejected == {"equal_rewards": 2}
    assert report.lost_attempts == {"frozen": 1}
    assert report.refused == {"duplicate": 1}
    assert (report.steps, report.batches, report.trained_tokens, report.ended) == (2, 1, 70, "finished")
    assert report.to_dict()["clean"] is True


def test_equal_lengths_share_a_decile(tmp_path: Path) -> None:
    good_run(tmp_path)
    deciles = audit(tmp_path).deciles
    assert [(decile.longest, decile.episodes) for decile in deciles] == [(10, 4), (20, 1), (30, 1)]
    assert [(decile.trained, decile.dropped) for decile in deciles] == [(0.5, 0.5), (1.0, 0.0), (1.0, 0.0)]


@pytest.mark.parametrize(
    ("kind", "old", "new", "says"),
    [
        ("BatchMade", '"trained_tokens":20', '"trained_tokens":21', "denominator of 21 for 20"),
        ("Rejected", '"reason":"frozen"', '"reason":""', "without a reason"),
        ("Trained", '"step":2', '"step":3', "step 3 was trained after step 1"),
        ("Running", '"episode":"a.0.0"', '"episode":"a.1.0"', "went from"),
        ("Refused", '"index":2', '"index":9', "tasks [2, 4, 5, 6, 7, 8] were skipped"),
        ("Scored", '"versions":{"0":10}', '"versions":{"5":10}', "0 is the newest"),
        ("Issued", '"episode":"a.1.0"', '"episode":"a.0.0"', "was issued twice"),
    ],
)
def test_a_changed_entry_is_named(tmp_path: Path, kind: str, old: str, new: str, says: str) -> None:
    good_run(tmp_path)
    tamper(tmp_path, "UPDATE entries SET body = replace(body, ?, ?) WHERE kind = ?", old, new, kind)
    report = audit(tmp_path)
    assert any(says in problem for problem in report.problems), report.problems


def test_a_removed_entry_is_named(tmp_path: Path) -> None:
    good_run(tmp_path)
    tamper(tmp_path, "DELETE FROM entries WHERE kind = 'Done' AND body LIKE '%a.1.0%'")
    assert any("from running to scored" in problem for problem in audit(tmp_path).problems)


def test_an_episode_trained_twice_is_named(tmp_path: Path) -> None:
    good_run(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        (body,) = db.execute("SELECT body FROM entries WHERE kind = 'BatchMade'").fetchone()
        again = body.replace('"step":1', '"step":3').replace('"step":2', '"step":4').replace('"number":1', '"number":2')
        top = db.execute("SELECT max(position) FROM entries").fetchone()[0]
        db.execute("INSERT INTO entries VALUES (?, 0, 'BatchMade', ?)", (top + 1, again))
    problems = audit(tmp_path).problems
    assert any("episode a.0.0 was fed and is trained" in problem for problem in problems)
    assert any("group 0 was consumed by batch 1 and by batch 2" in problem for problem in problems)


def test_a_live_run_with_episodes_out_is_clean(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    ledger.record(Published(0), Served(0))
    ledger.record(issued("t", 0, size=2), issued("t", 1, size=2))
    report = audit(tmp_path)
    assert report.clean
    assert (report.in_flight, report.ended) == (2, None)


def test_what_a_resume_took_back_is_not_training(tmp_path: Path) -> None:
    good_run(tmp_path)
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    ledger.resume_from(1)
    ledger.close()
    report = audit(tmp_path)
    assert report.problems == ()
    assert (report.steps, report.trained, report.waiting, report.trained_tokens, report.resumes) == (1, 2, 2, 20, 1)


def test_no_journal_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no journal"):
        audit(tmp_path)


def blob(episode: str, tokens: int, *, masked: int = 0) -> bytes:
    count = tokens + masked
    turn = Turn(
        id="turn",
        agent_run=f"{episode}/main",
        parent=None,
        prompt_ids=np.array([1, 2], np.int32),
        completion_ids=np.zeros(count, np.int32),
        mask=np.arange(count) < tokens,
        sampler_logprobs=np.zeros(count, np.float32),
        spans=(Span(0, 0, count),),
        kv_oldest_version=0,
        sampling=Sampling(max_tokens=count),
        finish_reason="stop",
    )
    record = EpisodeRecord(id=episode, key=EpisodeKey(0, "t", 0), split="train", env="e", env_version="0", task={})
    file = io.BytesIO()
    write_episode(file, record, [turn])
    return file.getvalue()


def test_trained_tokens_are_counted_in_the_blobs(tmp_path: Path) -> None:
    good_run(tmp_path)
    lengths = {"a.0.0": 10, "a.1.0": 10, "b.0.1": 30, "b.1.0": 20}

    def opener(handle: str) -> BinaryIO:
        episode = handle.removesuffix(".blob")
        return io.BytesIO(blob(episode, lengths[episode], masked=3))

    report = audit(tmp_path, open_blob=opener)
    assert report.problems == ()
    assert report.blobs_checked == 4
    lengths["b.0.1"] = 31
    assert any("b.0.1/main" in problem for problem in audit(tmp_path, open_blob=opener).problems)


def test_a_missing_or_torn_blob_is_named(tmp_path: Path) -> None:
    good_run(tmp_path)

    def opener(handle: str) -> BinaryIO:
        if handle.startswith("a"):
            raise FileNotFoundError(handle)
        return io.BytesIO(blob(handle.removesuffix(".blob"), 30)[:-1])

    problems = audit(tmp_path, open_blob=opener).problems
    assert sum("cannot be read" in problem for problem in problems) == 4
