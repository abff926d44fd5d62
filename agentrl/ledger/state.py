"""What the journal's entries add up to, held in memory.

The same `apply` serves the live run and the replay, so that they cannot differ. Nothing here is a conclusion kept twice: a group is closed
when its members are terminal, the data cursor is the highest index issued, a version is free when it is above the highest ever published.
Groups that were consumed and whose members are terminal are forgotten; the journal remembers.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from agentrl.episode import EpisodeKey
from agentrl.errors import LedgerError
from agentrl.ledger.entry import (
    AnyEntry,
    BatchMade,
    Checkpointed,
    Done,
    Ended,
    EpochEnded,
    Evaluated,
    Issued,
    Published,
    Refused,
    Rejected,
    Resumed,
    Retired,
    Running,
    Scored,
    ScoredRun,
    Served,
    Split,
    Trained,
)
from agentrl.ledger.journal import Recorded
from agentrl.ledger.revert import Revert

Status = Literal["issued", "running", "done", "scored", "trained", "rejected"]
_BEFORE: dict[Status, frozenset[Status]] = {
    "running": frozenset({"issued"}),
    "done": frozenset({"running"}),
    "scored": frozenset({"done"}),
    "rejected": frozenset({"issued", "running", "done", "scored"}),
    "trained": frozenset({"scored"}),
}
IN_FLIGHT: frozenset[Status] = frozenset({"issued", "running", "done"})


@dataclass(slots=True)
class Member:
    """One member of a group, by its latest attempt."""

    episode: str
    key: EpisodeKey
    split: Split
    group: int
    status: Status = "issued"
    worker: str = ""
    final: bool = True
    """Of a rejection: the member will not be issued again."""
    faults: int = 0
    """Attempts that ended by this member's own fault."""
    reason: str = ""
    handle: str = ""
    reward: float | None = None
    runs: tuple[ScoredRun, ...] = ()
    """Kept also by episodes rejected after scoring: their rewards stay in the baseline."""

    @property
    def terminal(self) -> bool:
        """Nothing more is expected of this member before its group is consumed."""
        return self.status in ("scored", "trained") or (self.status == "rejected" and self.final)


@dataclass(slots=True)
class Group:
    """The members issued for one task in one epoch (or evaluation). Agent runs with equal group keys inside are compared."""

    number: int
    """In the order of issue; oldest first."""
    split: Split
    epoch: int
    task_id: str
    index: int
    size: int
    members: dict[int, Member] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Every issued member is terminal."""
        return len(self.members) == self.size and all(member.terminal for member in self.members.values())


@dataclass(slots=True)
class State:
    """The ledger as of its last entry. Read it freely; only `apply` changes it."""

    groups: dict[int, Group] = field(default_factory=dict)
    """Not yet forgotten, by number, oldest first."""
    ready: dict[int, Group] = field(default_factory=dict)
    """Closed training groups that no batch consumed, in the order of closing."""
    episodes: dict[str, Member] = field(default_factory=dict)
    """Latest attempts of the members of `groups`."""
    in_flight: dict[str, Member] = field(default_factory=dict)
    """Issued, running or done."""
    batch: BatchMade | None = None
    """The last batch, until all its steps are trained."""
    epoch: int = 0
    next_index: int = 0
    """The data cursor: (epoch, next_index) is the first task of the training split that was neither issued nor refused."""
    seen: set[str] = field(default_factory=set)
    """Task ids of the current epoch."""
    next_group: int = 0
    batches: int = 0
    steps_made: int = 0
    """The last step that a batch was made for."""
    steps_done: int = 0
    """The last step that the optimizer made."""
    highest_version: int = -1
    served_version: int = -1
    checkpoint: Checkpointed | None = None
    """The latest one that no resume went behind."""
    next_evaluation: int = 0
    evaluated_step: int = -1
    tally: Counter[str] = field(default_factory=Counter)
    """Episodes issued, done, scored, trained, and rejected by reason ("rejected frozen")."""
    open_groups: int = 0
    """Training groups that are not closed yet."""
    by_task: dict[tuple[Split, int, str], int] = field(default_factory=dict)
    """Number of the group of (split, epoch, task id)."""

    @classmethod
    def replay(cls, journal: Iterable[Recorded], revert: Revert) -> "State":
        """The state that the entries add up to, without what later resumes took back."""
        state = cls()
        for recorded in journal:
            entry = revert.standing(recorded)
            if entry is not None:
                try:
                    state.apply(entry)
                except LedgerError as cause:
                    raise LedgerError(f"journal entry {recorded.position}: {cause}; `agentrl audit` says more") from cause
        return state

    @property
    def next_version(self) -> int:
        """Never used before, not even by a run that died."""
        return self.highest_version + 1

    def group_of(self, episode: str) -> Group:
        return self.groups[self.episodes[episode].group]

    def unconsumed(self) -> int:
        """Training groups that were issued and that no batch consumed yet, open or ready."""
        return self.open_groups + len(self.ready)

    def apply(self, entry: AnyEntry) -> None:
        """Raises LedgerError, having changed nothing, if the entry cannot follow on this state."""
        match entry:
            case Issued():
                self._issued(entry)
            case Running():
                self._move(entry.episode, "running").worker = entry.worker
            case Done():
                self._move(entry.episode, "done")
                self.tally["done"] += 1
            case Scored():
                self._scored(entry)
            case Rejected():
                self._rejected(entry)
            case BatchMade():
                self._batch_made(entry)
            case Retired():
                self._retired(entry)
            case Trained():
                self._trained(entry)
            case Published():
                self._published(entry)
            case Served():
                self._served(entry)
            case Refused() | EpochEnded():
                self._cursor(entry)
            case Checkpointed():
                self._checkpointed(entry)
            case Resumed():
                self._resumed(entry)
            case Evaluated():
                self._evaluated(entry)
            case Ended():
                if self.in_flight:
                    raise LedgerError(f"the run cannot end with {len(self.in_flight)} episodes in flight")

    def _issued(self, entry: Issued) -> None:
        key = entry.key
        if entry.episode in self.episodes:
            raise LedgerError(f"episode {entry.episode} was issued before")
        task = (entry.split, key.epoch, key.task_id)
        group = self.groups.get(self.by_task.get(task, -1))
        before = group.members.get(key.member) if group else None
        if before is None and key.attempt != 0:
            raise LedgerError(f"{key} has no attempt before it")
        if before is not None and (before.status != "rejected" or before.final or key.attempt != before.key.attempt + 1):
            raise LedgerError(f"{key} cannot be issued: attempt {before.key.attempt} is {before.status}")
        if group is None:
            group = self._new_group(entry)
        if not 0 <= key.member < group.size:
            raise LedgerError(f"{key} lies outside its group of {group.size}")
        if before is not None:
            del self.episodes[before.episode]
        member = Member(entry.episode, key, entry.split, group.number, faults=before.faults if before else 0)
        group.members[key.member] = self.episodes[entry.episode] = self.in_flight[entry.episode] = member
        self.tally["issued"] += 1

    def _new_group(self, entry: Issued) -> Group:
        key = entry.key
        if entry.split == "train":
            if key.epoch == self.epoch and key.task_id in self.seen:
                raise LedgerError(f"task {key.task_id} was issued before in epoch {key.epoch}")
            if key.epoch == self.epoch:
                self.seen.add(key.task_id)
                self.next_index = max(self.next_index, entry.index + 1)
            self.open_groups += 1
        else:
            self.next_evaluation = max(self.next_evaluation, key.epoch + 1)
        group = Group(self.next_group, entry.split, key.epoch, key.task_id, entry.index, entry.size)
        self.groups[group.number] = group
        self.by_task[(entry.split, key.epoch, key.task_id)] = group.number
        self.next_group += 1
        return group

    def _move(self, episode: str, to: Status) -> Member:
        member = self.episodes.get(episode)
        if member is None:
            raise LedgerError(f"episode {episode} is unknown or was settled long ago; it cannot become {to}")
        if member.status not in _BEFORE[to]:
            raise LedgerError(f"episode {episode} is {member.status} and cannot become {to}")
        member.status = to
        if to not in IN_FLIGHT:
            self.in_flight.pop(episode, None)
        return member

    def _scored(self, entry: Scored) -> None:
        member = self._move(entry.episode, "scored")
        member.handle, member.runs, member.reward = entry.handle, entry.runs, entry.reward
        self.tally["scored"] += 1
        self._close(self.groups[member.group])

    def _rejected(self, entry: Rejected) -> None:
        member = self.episodes.get(entry.episode)
        scored = member is not None and member.status == "scored"
        if scored and not entry.final and self._is_fed(entry.episode):
            raise LedgerError(f"episode {entry.episode} is with the trainer; its member cannot be issued again")
        member = self._move(entry.episode, "rejected")
        member.final, member.reason = entry.final, entry.reason
        member.faults += entry.fault
        self.tally[f"rejected {entry.reason}"] += 1
        if entry.final and not scored:
            self._close(self.groups[member.group])
        elif not entry.final and self.ready.pop(member.group, None) is not None:
            self.open_groups += 1

    def _is_fed(self, episode: str) -> bool:
        if self.batch is None:
            return False
        return any(self.episodes[episode].group in share for share in self.batch.groups)

    def _close(self, group: Group) -> None:
        if group.split == "train" and group.closed:
            self.open_groups -= 1
            self.ready[group.number] = group

    def _batch_made(self, entry: BatchMade) -> None:
        batch = entry.batch
        if self.batch is not None:
            raise LedgerError(f"batch {batch.number} cannot be made: batch {self.batch.batch.number} is not trained yet")
        if batch.minibatches[0].step != self.steps_made + 1:
            raise LedgerError(f"batch {batch.number} starts at step {batch.minibatches[0].step}; {self.steps_made} steps were fed before")
        numbers = [*entry.dropped, *(number for minibatch in entry.groups for number in minibatch)]
        if missing := [number for number in numbers if number not in self.ready]:
            raise LedgerError(f"batch {batch.number} consumes groups {missing}, which are not closed or were consumed before")
        for minibatch in batch.minibatches:
            for fed in minibatch.episodes:
                if self.episodes[fed.episode].status != "scored":
                    raise LedgerError(f"batch {batch.number} feeds episode {fed.episode}, which is {self.episodes[fed.episode].status}")
        for number in numbers:
            del self.ready[number]
        for number in entry.dropped:
            self._forget(number)
        self.batch, self.batches, self.steps_made = entry, batch.number, batch.minibatches[-1].step

    def _trained(self, entry: Trained) -> None:
        if self.batch is None or entry.step != self.steps_done + 1 or entry.step > self.steps_made:
            raise LedgerError(f"step {entry.step} cannot be trained: {self.steps_done} are done and {self.steps_made} were fed")
        minibatches = self.batch.batch.minibatches
        at = entry.step - minibatches[0].step
        for fed in minibatches[at].episodes:
            self._move(fed.episode, "trained")
            self.tally["trained"] += 1
        for number in self.batch.groups[at]:
            self._forget(number)
        self.steps_done = entry.step
        if entry.step == self.steps_made:
            self.batch = None

    def _retired(self, entry: Retired) -> None:
        for number in entry.groups:
            if number not in self.ready or any(member.status == "scored" for member in self.ready[number].members.values()):
                raise LedgerError(f"group {number} cannot be retired: it is not closed, was consumed, or can be trained")
        for number in entry.groups:
            del self.ready[number]
            self._forget(number)

    def _forget(self, number: int) -> None:
        group = self.groups.pop(number)
        del self.by_task[(group.split, group.epoch, group.task_id)]
        for member in group.members.values():
            del self.episodes[member.episode]
            self.in_flight.pop(member.episode, None)

    def _published(self, entry: Published) -> None:
        if entry.version <= self.highest_version:
            raise LedgerError(f"version {entry.version} was used before (highest: {self.highest_version}); versions are never reused")
        self.highest_version = entry.version

    def _served(self, entry: Served) -> None:
        if not self.served_version <= entry.version <= self.highest_version:
            raise LedgerError(
                f"version {entry.version} cannot be served: {self.served_version} is, and {self.highest_version} is the newest"
            )
        self.served_version = entry.version

    def _cursor(self, entry: Refused | EpochEnded) -> None:
        if entry.epoch != self.epoch:
            raise LedgerError(f"epoch {entry.epoch} is not the current one ({self.epoch})")
        if isinstance(entry, EpochEnded):
            self.epoch, self.next_index = self.epoch + 1, 0
            self.seen.clear()
        else:
            self.next_index = max(self.next_index, entry.index + 1)
            self.tally[f"refused {entry.reason}"] += 1

    def _checkpointed(self, entry: Checkpointed) -> None:
        if entry.step > self.steps_done:
            raise LedgerError(f"a checkpoint of step {entry.step} cannot exist: {self.steps_done} steps are done")
        self.checkpoint = entry

    def _resumed(self, entry: Resumed) -> None:
        if entry.step > self.steps_done:
            raise LedgerError(f"the checkpoint of step {entry.step} is ahead of the journal, which ends at step {self.steps_done}")
        if entry.step != self.steps_done or self.batch is not None:
            raise LedgerError(f"a resume from step {entry.step} takes steps back; only a replay can apply it")

    def _evaluated(self, entry: Evaluated) -> None:
        self.next_evaluation = max(self.next_evaluation, entry.evaluation + 1)
        self.evaluated_step = max(self.evaluated_step, entry.step)
        for number in [n for n, group in self.groups.items() if group.split == "eval" and group.epoch <= entry.evaluation]:
            self._forget(number)
