"""The ledger refuses what cannot have happened, and says the same after a replay."""

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from agentrl.episode import EpisodeKey
from agentrl.errors import LedgerError
from agentrl.ledger import Ledger, read_journal
from agentrl.ledger.entry import (
    Checkpointed,
    Done,
    Ended,
    EpochEnded,
    Issued,
    Published,
    Refused,
    Rejected,
    Retired,
    Running,
    Scored,
    Served,
    Trained,
)
from tests.unit.ledger.build import batch, issued, name, score, scored_group, scored_run


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger.sqlite")


def reopened(ledger: Ledger, path: Path) -> Ledger:
    ledger.close()
    return Ledger.open(path)


def test_an_episode_walks_from_issued_to_trained(ledger: Ledger) -> None:
    ledger.record(issued("t", 0, size=1))
    assert ledger.state.episodes["t.0.0"].status == "issued"
    score(ledger, "t.0.0", scored_run("t.0.0", 1.0))
    assert not ledger.state.in_flight
    assert list(ledger.state.ready) == [0]
    ledger.record(batch(ledger, [[0]]))
    ledger.record(Trained(1))
    assert ledger.state.tally["trained"] == 1
    assert ledger.state.groups == {}


@pytest.mark.parametrize(
    "entry", [Done("t.0.0", "finished"), Scored("t.0.0", "h", ()), Running("unknown", "w"), Trained(1), Served(0), EpochEnded(3, 0)]
)
def test_illegal_transitions_are_refused_and_change_nothing(ledger: Ledger, entry: Done) -> None:
    ledger.record(issued("t", 0, size=2), issued("t", 1, size=2))
    position = ledger.position
    with pytest.raises(LedgerError):
        ledger.record(entry)
    assert ledger.position == position
    ledger.record(Running("t.0.0", "w"))


def test_rejected_and_trained_are_ends(ledger: Ledger) -> None:
    ledger.record(issued("t", 0, size=2), issued("t", 1, size=2))
    ledger.record(Rejected("t.0.0", "frozen"))
    with pytest.raises(LedgerError, match="is rejected and cannot become running"):
        ledger.record(Running("t.0.0", "w"))
    with pytest.raises(LedgerError, match="cannot be issued"):
        ledger.record(issued("t", 0, size=2, attempt=1))


def test_a_released_member_is_issued_again_and_its_group_stays_open(ledger: Ledger) -> None:
    ledger.record(issued("t", 0, size=1))
    ledger.record(Rejected("t.0.0", "released", final=False), issued("t", 0, size=1, attempt=1))
    assert not ledger.state.ready
    member = ledger.state.episodes["t.0.1"]
    assert (member.key.attempt, member.faults) == (1, 0)
    ledger.record(Rejected("t.0.1", "frozen", final=False, fault=True), issued("t", 0, size=1, attempt=2))
    assert ledger.state.episodes["t.0.2"].faults == 1


def test_a_failed_later_entry_stops_the_ledger(ledger: Ledger) -> None:
    ledger.record(issued("t", 0, size=1))
    with pytest.raises(LedgerError):
        ledger.record(Running("t.0.0", "w"), Running("t.0.0", "w"))
    with pytest.raises(LedgerError, match="resume the run"):
        ledger.record(Done("t.0.0", "finished"))


def test_versions_are_never_reused(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record(Published(0), Served(0))
    ledger.record(Published(7))
    again = reopened(ledger, tmp_path / "ledger.sqlite")
    assert (again.state.served_version, again.state.next_version) == (0, 8)
    with pytest.raises(LedgerError, match="never reused"):
        again.record(Published(7))


def test_the_cursor_follows_from_what_was_issued_or_refused(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record(issued("a", 0, size=1, index=0))
    ledger.record(Refused(0, 1, "a", "duplicate"))
    ledger.record(issued("b", 0, size=1, index=2))
    again = reopened(ledger, tmp_path / "ledger.sqlite")
    assert (again.state.epoch, again.state.next_index, again.state.seen) == (0, 3, {"a", "b"})
    again.record(EpochEnded(0, 3))
    assert (again.state.epoch, again.state.next_index, again.state.seen) == (1, 0, set())
    again.record(Issued("a.0.0 again", EpisodeKey(1, "a", 0), "train", 0, 1))


def test_a_duplicate_task_in_an_epoch_is_refused(ledger: Ledger) -> None:
    scored_group(ledger, "a", [1.0])
    ledger.record(batch(ledger, [[0]]))
    ledger.record(Trained(1))
    with pytest.raises(LedgerError, match="issued before in epoch 0"):
        ledger.record(issued("a", 0, size=1))


def test_a_resume_turns_later_training_back_into_scored(ledger: Ledger, tmp_path: Path) -> None:
    groups = [scored_group(ledger, task, [0.0, 1.0], index=at) for at, task in enumerate("abc")]
    ledger.record(batch(ledger, [[groups[0]]]))
    ledger.record(Trained(1), Checkpointed(1, "checkpoints/1"))
    ledger.record(batch(ledger, [[groups[1]]], dropped=(groups[2],)))
    ledger.record(Trained(2), Checkpointed(2, "checkpoints/2"))
    ledger.resume_from(1)
    for state in (ledger.state, reopened(ledger, tmp_path / "ledger.sqlite").state):
        assert (state.steps_made, state.steps_done, state.batches) == (1, 1, 1)
        assert sorted(state.ready) == [groups[1], groups[2]]
        assert state.episodes[name("b", 0)].status == "scored"
        assert name("a", 0) not in state.episodes
        assert state.checkpoint == Checkpointed(1, "checkpoints/1")


def test_a_resume_in_mid_batch_keeps_the_minibatches_before_it(ledger: Ledger) -> None:
    groups = [scored_group(ledger, task, [0.0, 1.0], index=at) for at, task in enumerate("ab")]
    ledger.record(batch(ledger, [[groups[0]], [groups[1]]]))
    ledger.record(Trained(1))
    ledger.resume_from(1)
    assert ledger.state.batch is None
    assert list(ledger.state.ready) == [groups[1]]
    ledger.record(batch(ledger, [[groups[1]]]))
    ledger.record(Trained(2))
    assert ledger.state.tally["trained"] == 4


def test_a_checkpoint_ahead_of_its_step_reports_counts_them(ledger: Ledger) -> None:
    group = scored_group(ledger, "a", [0.0, 1.0])
    ledger.record(batch(ledger, [[group]]))
    ledger.resume_from(1)
    assert (ledger.state.steps_done, ledger.state.tally["trained"]) == (1, 2)
    with pytest.raises(LedgerError, match="ahead of the journal"):
        ledger.resume_from(2)


def test_the_run_cannot_end_with_episodes_in_flight(ledger: Ledger) -> None:
    ledger.record(issued("t", 0, size=1))
    with pytest.raises(LedgerError, match="1 episodes in flight"):
        ledger.record(Ended("finished"))


def test_the_journal_is_append_only(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record(Published(0))
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("UPDATE entries SET body = '{}'")


def test_task_bodies_survive(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record(issued("t", 0, size=1), tasks={"t": b"body"})
    assert reopened(ledger, tmp_path / "ledger.sqlite").task("t") == b"body"


def _try_open(path: Path, answer: "multiprocessing.Queue[str]") -> None:
    try:
        Ledger.open(path)
    except LedgerError as refusal:
        answer.put(str(refusal))
    else:
        answer.put("opened")


def test_a_second_process_on_the_run_folder_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[str] = spawn.Queue()
    other = spawn.Process(target=_try_open, args=(tmp_path / "ledger.sqlite", answer))
    other.start()
    message = answer.get(timeout=60)
    other.join(timeout=60)
    assert "is in use by process" in message
    assert "choose another --name" in message


def test_a_live_journal_can_be_read_beside_its_writer(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record(Published(0))
    assert [recorded.entry for recorded in read_journal(tmp_path / "ledger.sqlite")] == [Published(0)]
    with pytest.raises(LedgerError, match="no journal"):
        list(read_journal(tmp_path / "elsewhere.sqlite"))


def test_a_newer_schema_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="schema 99"):
        Ledger.open(tmp_path / "ledger.sqlite")


def test_a_full_disk_is_said_plainly_and_nothing_written_is_lost(tmp_path: Path) -> None:
    """SQLite's own bound on the file's pages meets the same error as a full disk."""
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    ledger._journal._db.execute("PRAGMA max_page_count = 12")
    with pytest.raises(LedgerError, match="free disk space"):
        fill(ledger)
    with pytest.raises(LedgerError, match="resume the run"):
        ledger.record(Published(0))
    written = ledger.position
    again = reopened(ledger, tmp_path / "ledger.sqlite")
    assert again.position == written
    assert len(again.state.episodes) == written
    again.record(Published(0))


def test_what_is_too_old_to_train_is_issued_again_and_its_group_reopens(ledger: Ledger) -> None:
    number = scored_group(ledger, "t", [0.0, 1.0])
    ledger.record(Rejected(name("t", 0), "stale", final=False), issued("t", 0, size=2, attempt=1))
    assert number not in ledger.state.ready
    assert ledger.state.open_groups == 1
    score(ledger, name("t", 0, 1), scored_run("again", 0.0))
    assert list(ledger.state.ready) == [number]
    ledger.record(batch(ledger, [[number]]))
    with pytest.raises(LedgerError, match="with the trainer"):
        ledger.record(Rejected(name("t", 1), "stale", final=False))


def test_only_closed_groups_without_a_scored_member_are_retired(ledger: Ledger) -> None:
    number = scored_group(ledger, "t", [1.0, 1.0])
    with pytest.raises(LedgerError, match="cannot be retired"):
        ledger.record(Retired((number,)))
    ledger.record(Rejected(name("t", 0), "equal_rewards"), Rejected(name("t", 1), "equal_rewards"))
    ledger.record(Retired((number,)))
    assert ledger.state.groups == {}


def fill(ledger: Ledger) -> None:
    for task in range(10_000):
        ledger.record(issued(f"t{task}", 0, size=1, index=task), tasks={f"t{task}": b"x" * 500})


def test_a_resume_may_go_behind_an_earlier_resume(ledger: Ledger, tmp_path: Path) -> None:
    groups = [scored_group(ledger, task, [0.0, 1.0], index=at) for at, task in enumerate("ab")]
    for step, group in enumerate(groups, start=1):
        ledger.record(batch(ledger, [[group]]))
        ledger.record(Trained(step))
    ledger.resume_from(1)
    ledger.resume_from(0)
    again = reopened(ledger, tmp_path / "ledger.sqlite")
    assert (again.state.steps_done, sorted(again.state.ready)) == (0, groups)


def test_a_damaged_journal_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.open(path)
    for number in range(400):
        ledger.record(issued(f"t{number}", 0, size=1))
    ledger._journal.checkpoint()
    ledger.close()
    pages = path.read_bytes()
    path.write_bytes(pages[:8192] + b"\x5a" * (len(pages) - 12288) + pages[-4096:])
    with pytest.raises(LedgerError, match=r"cannot read the journal .*ledger.sqlite: .*put back a copy"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match=r"cannot read the journal .*ledger.sqlite: .*put back a copy"):
        list(read_journal(path))
    path.write_bytes(b"nothing like a data base" * 1000)
    with pytest.raises(LedgerError, match=r"the journal .*ledger.sqlite: file is not a database"):
        Ledger.open(path)


def test_a_log_that_cannot_be_moved_into_the_journal_is_the_ledgers_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.open(path)
    ledger.close()
    path.unlink()
    path.mkdir()
    with pytest.raises(LedgerError, match="free disk space or fix the disk, then resume"):
        ledger._journal.checkpoint()
