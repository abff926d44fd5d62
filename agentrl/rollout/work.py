"""Work: episodes that wait for a lease or are out under one, and what happens when an attempt fails.

A member whose attempt ended by no doing of its own (its worker died, a bystander froze it) is issued again without penalty; one that failed
by itself is issued again while it has retries left. Either way the failed attempt and its successor are one transaction, so a group
never looks closed in between, and the total number of attempts is bounded.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from agentrl.env.seed import derive
from agentrl.episode import EpisodeKey
from agentrl.errors import EnvError
from agentrl.ledger import Group, Ledger, Member
from agentrl.ledger.entry import Issued, Rejected, Split
from agentrl.rollout.observer import EpisodeEvent, Observer

ATTEMPTS = 8
"""Of one member in all, whoever was to blame."""
FAILURES_IN_A_ROW = 128
"""Attempts that failed by themselves with no scored episode in between: after so many the environment is taken to be broken."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Work(msgspec.Struct, frozen=True):
    """One attempt at one member of a group."""

    episode: str
    key: EpisodeKey
    split: Split
    index: int
    size: int
    task: dict[str, Any]
    group_seed: int
    seed: int

    @property
    def entry(self) -> Issued:
        return Issued(self.episode, self.key, self.split, self.index, self.size)


class WorkList:
    """Episodes not done yet. Evaluation and second attempts go first: others wait for them."""

    def __init__(self, ledger: Ledger, *, seed: int, retries: int, on_closed: Callable[[Group], None], observer: Observer) -> None:
        self._ledger = ledger
        self._seed = seed
        self._retries = retries
        self._on_closed = on_closed
        self._observer = observer
        self._urgent: deque[Work] = deque()
        self._waiting: deque[Work] = deque()
        self._out: dict[str, Work] = {}
        self._failures = 0

    @property
    def waiting(self) -> int:
        return len(self._urgent) + len(self._waiting)

    def issue(self, split: Split, epoch: int, index: int, task: dict[str, Any], *, size: int) -> int:
        """All members of a group, in one transaction; the group's number."""
        members = [self._work(EpisodeKey(epoch, task["id"], member), split, index, size, task) for member in range(size)]
        self._ledger.record(*(work.entry for work in members), tasks={task["id"]: _encode(task)})
        (self._urgent if split == "eval" else self._waiting).extend(members)
        return self._ledger.state.group_of(members[0].episode).number

    def take(self) -> Work | None:
        """The next episode to lease."""
        queue = self._urgent or self._waiting
        if not queue:
            return None
        work = queue.popleft()
        self._out[work.episode] = work
        return work

    def finished(self, episode: str) -> None:
        """The episode is scored."""
        self._failures = 0
        del self._out[episode]
        self._look_at_group(episode)

    def fail(self, episode: str, reason: str, *, fault: bool, worker: str = "", detail: str = "", terminal: str = "") -> bool:
        """The attempt is lost. Issue the member again if it may be; whether it was.

        Raises EnvError after FAILURES_IN_A_ROW: nothing would ever be trained, and the run would go on for ever.
        """
        work = self._out.pop(episode)
        faults = self._ledger.state.episodes[episode].faults + fault
        again = faults <= self._retries and work.key.attempt + 1 < ATTEMPTS
        rejected = Rejected(episode, reason, detail, final=not again, fault=fault)
        if again:
            successor = self._next_attempt(work)
            self._ledger.record(rejected, successor.entry)
            self._urgent.append(successor)
        else:
            self._ledger.record(rejected)
            self._look_at_group(episode)
        self._observer.episode(
            EpisodeEvent(
                episode=episode,
                split=work.split,
                task_id=work.key.task_id,
                worker=worker,
                reason=reason,
                detail=detail,
                terminal=terminal,
                again=again,
            )
        )
        self._failures += fault
        if self._failures >= FAILURES_IN_A_ROW:
            raise EnvError(
                f"{self._failures} episodes in a row failed and none earned a reward; the last, {episode}, was rejected as {reason}: "
                f"{detail or 'no more is known'}; try one with `agentrl try`, or see metrics.jsonl for all of them"
            )
        return again

    def interrupt_all(self) -> None:
        """Give up what is in flight; a resume issues it again. Evaluations are given up for good: a resume makes them anew."""
        for member in list(self._ledger.state.in_flight.values()):
            self._ledger.record(Rejected(member.episode, "interrupted", final=member.split == "eval"))
        self._urgent.clear()
        self._waiting.clear()
        self._out.clear()

    def renew(self, member: Member, reason: str) -> None:
        """Issue a member again, from the journal's copy of its task."""
        group = self._ledger.state.groups[member.group]
        task = _decode(self._ledger.task(group.task_id))
        key = msgspec.structs.replace(member.key, attempt=member.key.attempt + 1)
        successor = self._work(key, group.split, group.index, group.size, task)
        rejected = [] if member.status == "rejected" else [Rejected(member.episode, reason, final=False)]
        self._ledger.record(*rejected, successor.entry)
        self._waiting.append(successor)

    def _look_at_group(self, episode: str) -> None:
        group = self._ledger.state.group_of(episode)
        if group.closed:
            self._on_closed(group)

    def _next_attempt(self, work: Work) -> Work:
        key = msgspec.structs.replace(work.key, attempt=work.key.attempt + 1)
        return self._work(key, work.split, work.index, work.size, work.task)

    def _work(self, key: EpisodeKey, split: Split, index: int, size: int, task: dict[str, Any]) -> Work:
        # An episode's id names its blob, so it is unique in the run and readable in a listing.
        row = f"{'e' if split == 'eval' else 't'}{key.epoch}-{index:06d}-{key.member}"
        episode = f"{row}-{key.attempt}" if key.attempt else row
        group_seed = derive(self._seed, split, key.epoch if split == "train" else 0, key.task_id)
        return Work(episode, key, split, index, size, task, group_seed, derive(group_seed, key.member, key.attempt))
