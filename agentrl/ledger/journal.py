"""The journal: an append-only SQLite table of entries, control plane only (no token, no text of a turn).

WAL with synchronous=NORMAL: a commit is a write to the page cache, tens of microseconds, so that the event loop commits inline and an
acknowledged message is on record before its answer leaves. The file survives the death of any process; a power cut may take the last
commits, never the order. Moving the WAL into the table, which does wait for the disk, happens in a thread (`checkpoint`).
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from agentrl.errors import LedgerError
from agentrl.ledger.entry import AnyEntry, Resumed

SCHEMA = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS entries (position INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEntry] = msgspec.json.Decoder(AnyEntry)
_resumed_decoder = msgspec.json.Decoder(Resumed)


class Recorded(msgspec.Struct, frozen=True):
    """An entry with its place and time."""

    position: int
    at: float
    """Seconds since the epoch."""
    entry: AnyEntry


class Resume(msgspec.Struct, frozen=True):
    """Where the run went on from the checkpoint of `step`."""

    position: int
    step: int


class Journal:
    """One writer's handle. `path=None` keeps everything in memory, for simulations."""

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        try:
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA wal_autocheckpoint=0")
            self._db.executescript(_TABLES)
            _check_schema(self._db, path, create=True)
            self.position: int = self._db.execute("SELECT coalesce(max(position), 0) FROM entries").fetchone()[0]
        except sqlite3.Error as cause:
            raise LedgerError(f"cannot open the journal {path}: {cause}") from cause

    def append(self, entries: Sequence[AnyEntry], tasks: Mapping[str, bytes] | None = None) -> None:
        """One transaction: all of it, or LedgerError and none. `tasks`: bodies by task id, kept so that an attempt can be issued again."""
        at = self._now()
        rows = [(self.position + n, at, type(entry).__name__, _encoder.encode(entry).decode()) for n, entry in enumerate(entries, start=1)]
        try:
            self._db.execute("BEGIN")
            try:
                self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
                if tasks:
                    self._db.executemany("INSERT OR IGNORE INTO tasks VALUES (?, ?)", tasks.items())
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as cause:
            raise LedgerError(_unwritten(self.path, cause)) from cause
        self.position += len(rows)

    def entries(self) -> Iterator[Recorded]:
        """Raises LedgerError where the file is damaged."""
        with _reading(self.path):
            yield from _read(self._db)

    def resumes(self) -> list[Resume]:
        """Every resume so far, in order."""
        with _reading(self.path):
            rows = self._db.execute("SELECT position, body FROM entries WHERE kind = 'Resumed' ORDER BY position").fetchall()
        return [Resume(position, _resumed_decoder.decode(body).step) for position, body in rows]

    def task(self, task_id: str) -> bytes:
        """Raises LedgerError if no episode of that task was ever issued."""
        with _reading(self.path):
            row: tuple[bytes] | None = self._db.execute("SELECT body FROM tasks WHERE id = ?", (task_id,)).fetchone()
        if row is None:
            raise LedgerError(f"the journal {self.path} does not hold task {task_id!r}")
        return row[0]

    def checkpoint(self) -> None:
        """Move the WAL into the table. Opens a connection of its own, so that it may run in a thread beside the writer."""
        if self.path is None:
            return
        try:
            with closing(sqlite3.connect(self.path, timeout=1.0)) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as cause:
            raise LedgerError(_unwritten(self.path, cause)) from cause

    def close(self) -> None:
        self._db.close()


def read_journal(path: Path) -> Iterator[Recorded]:
    """The entries of a live or dead run, without its lock. Raises LedgerError if there is no journal."""
    if not path.is_file():
        raise LedgerError(f"there is no journal at {path}; is this a run folder?")
    with _reading(path), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        _check_schema(db, path, create=False)
        yield from _read(db)


def _unwritten(path: Path | None, cause: sqlite3.Error) -> str:
    return f"cannot write to the journal {path}: {cause}; free disk space or fix the disk, then resume the run"


@contextmanager
def _reading(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as cause:
        raise LedgerError(
            f"cannot read the journal {path}: {cause}; put back a copy of it, "
            "or start a new run with a checkpoint of this one as its --model"
        ) from cause


def _read(db: sqlite3.Connection) -> Iterator[Recorded]:
    for position, at, body in db.execute("SELECT position, at, body FROM entries ORDER BY position"):
        try:
            yield Recorded(position, at, _decoder.decode(body))
        except msgspec.MsgspecError as cause:
            raise LedgerError(f"journal entry {position} cannot be read: {cause}; read it with the agentrl that wrote it") from cause


def _check_schema(db: sqlite3.Connection, path: Path | None, *, create: bool) -> None:
    schema: int = db.execute("PRAGMA user_version").fetchone()[0]
    if schema > SCHEMA:
        raise LedgerError(f"the journal {path} has schema {schema} and this agentrl reads up to {SCHEMA}; use the agentrl that wrote it")
    if create and schema < SCHEMA:
        db.execute(f"PRAGMA user_version = {SCHEMA}")
