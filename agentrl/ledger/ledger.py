"""The ledger: the journal and what it adds up to, changed together or not at all.

Order matters: an entry is checked against the state, written, and only then does anybody act on it. After a write that fails the state is
ahead of the journal by that entry, so the ledger refuses all further work; a resume replays what is really there.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
from anyio import to_thread

from agentrl.errors import LedgerError
from agentrl.ledger.entry import AnyEntry, Resumed, Trained
from agentrl.ledger.journal import Journal
from agentrl.ledger.lock import RunLock
from agentrl.ledger.revert import Revert
from agentrl.ledger.state import State


class Ledger:
    """One run's. Opened by the controller alone; readers use `read_journal`."""

    def __init__(self, journal: Journal, lock: RunLock | None = None) -> None:
        self._journal = journal
        self._lock = lock
        self._broken = ""
        self.state = State.replay(journal.entries(), Revert(journal.resumes()))

    @classmethod
    def open(cls, path: Path, *, now: Callable[[], float] = time.time) -> "Ledger":
        """The journal at `path`, made if absent. Raises LedgerError if another process holds the run."""
        lock = RunLock(path.with_suffix(".lock"))
        try:
            return cls(Journal(path, now=now), lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def in_memory(cls, *, now: Callable[[], float] = time.time) -> "Ledger":
        """For simulations and tests: nothing survives."""
        return cls(Journal(None, now=now))

    @property
    def position(self) -> int:
        """The journal's last entry."""
        return self._journal.position

    def record(self, *entries: AnyEntry, tasks: Mapping[str, bytes] | None = None) -> None:
        """Check, write and apply in one transaction. Raises LedgerError; after an illegal first entry nothing changed."""
        if self._broken:
            raise LedgerError(f"the ledger stopped at an earlier failure: {self._broken}; resume the run")
        applied = 0
        try:
            for entry in entries:
                self.state.apply(entry)
                applied += 1
            self._journal.append(entries, tasks)
        except BaseException as cause:
            if applied:
                self._broken = str(cause)
            raise

    def task(self, task_id: str) -> bytes:
        """The body given to `record(..., tasks=...)`."""
        return self._journal.task(task_id)

    def resume_from(self, step: int) -> None:
        """Take back all that speaks of steps after `step` (the step of the checkpoint that the trainer starts from; 0: none)."""
        state = self.state
        if step > state.steps_made:
            raise LedgerError(f"the checkpoint of step {step} is ahead of the journal, which ends at step {state.steps_made}")
        # The trainer may have died between its checkpoint and its report of the steps in it.
        for done in range(state.steps_done + 1, step + 1):
            self.record(Trained(done))
        self._journal.append([Resumed(step)])
        self.state = State.replay(self._journal.entries(), Revert(self._journal.resumes()))

    async def tend(self, every_s: float) -> None:
        """Move the write-ahead log into the table now and then, in a thread. Runs until cancelled."""
        while True:
            await anyio.sleep(every_s)
            await to_thread.run_sync(self._journal.checkpoint)

    def close(self) -> None:
        self._journal.close()
        if self._lock:
            self._lock.close()
