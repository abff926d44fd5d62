"""The dispatcher: who runs which episode, and until when.

Workers pull. A lease ends when its episode is posted, when its deadline passes, when its worker falls silent or freezes, or when it is
withdrawn; whichever comes first takes the lease out of the book, and whatever comes later finds nothing there. So an episode is counted
once, and a reply or post that was lost on the way costs an attempt, never an episode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Protocol

import anyio
import msgspec

from agentrl.episode import EpisodeRecord
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Done, Running
from agentrl.rollout.bell import Bell
from agentrl.rollout.observer import Observer, WorkerEvent
from agentrl.rollout.wire import EpisodeDone, Heartbeat, HeartbeatReply, Lease, LeaseReply, LeaseRequest, TaskRequest
from agentrl.rollout.work import Work, WorkList

LONGEST_POLL_S = 60.0
LEASES_PER_REPLY = 128
"""A worker with more room asks again; one huge grant would hold the loop."""


class Supply(Protocol):
    """Where more work comes from."""

    def supply(self, room: int) -> None:
        """Add work to the list if `room` episodes could be leased now."""
        ...

    def request(self) -> TaskRequest | None:
        """Tasks to ask a worker for."""
        ...


class LeaseRules(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take, in seconds."""

    lost_after_s: float
    """A worker or lease that no heartbeat named for so long is lost."""
    frozen_after_s: float
    """A worker whose event loop stood still for so long is frozen."""
    leaked_threads: int = 8
    """A worker with so many threads that outlived their deadline is sent home once its episodes ended."""
    grace_s: float = 15.0
    """The worker ends an episode at its lease's deadline by itself; so long after that nobody waits for its post."""
    watch_every_s: float = 0.5


@dataclass(slots=True)
class _Held:
    """A lease out at a worker."""

    lease: str
    work: Work
    worker: str
    deadline: float
    named: float
    """When the worker last spoke of it."""


@dataclass(slots=True)
class _Worker:
    heard: float
    retired: bool = False
    """Gets no more leases."""
    held: dict[str, _Held] = field(default_factory=dict)


class Dispatcher:
    """Leases work to workers, and takes it back."""

    def __init__(
        self,
        ledger: Ledger,
        work: WorkList,
        supply: Supply,
        rules: LeaseRules,
        *,
        lease_s: Callable[[dict[str, Any]], float],
        on_done: Callable[[str, EpisodeRecord], None],
        on_lost: Callable[[str], None],
        observer: Observer,
        bell: Bell,
    ) -> None:
        """`lease_s`: from a task as builtins to what an episode of it may take. `on_done(worker, record)` and
        `on_lost(episode)`, of which nothing will be posted any more, must not block."""
        self._ledger = ledger
        self._work = work
        self._supply = supply
        self._rules = rules
        self._lease_s = lease_s
        self._on_done = on_done
        self._on_lost = on_lost
        self._observer = observer
        self._bell = bell
        self._held: dict[str, _Held] = {}
        self._workers: dict[str, _Worker] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._open = False
        self._stopped = False

    @property
    def held(self) -> int:
        """Leases out now."""
        return len(self._held)

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        """Work for a worker, as soon as there is any; empty after `wait_s`."""
        with anyio.move_on_after(min(request.wait_s, LONGEST_POLL_S)):
            while not self._stopped:
                reply = self._offer(request)
                if reply is not None:
                    return reply
                await self._bell.wait()
        return LeaseReply(stop=self._stopped)

    def _offer(self, request: LeaseRequest) -> LeaseReply | None:
        worker = self._workers.get(request.worker)
        if worker is not None and worker.retired:
            return None if worker.held else LeaseReply(stop=True)
        if not self._open:
            return None
        room = min(request.capacity, LEASES_PER_REPLY)
        self._supply.supply(room)
        leases: list[Lease] = []
        while len(leases) < room and (work := self._work.take()) is not None:
            leases.append(self._grant(work, request.worker))
        if leases:
            self._ledger.record(*(Running(lease.episode, request.worker) for lease in leases))
        asked = self._supply.request()
        if not leases and asked is None:
            return None
        return LeaseReply(leases=tuple(leases), tasks=() if asked is None else (asked,))

    def _grant(self, work: Work, worker: str) -> Lease:
        now = anyio.current_time()
        length_s = self._lease_s(work.task)
        held = _Held(f"{worker}/{work.episode}", work, worker, now + length_s + self._rules.grace_s, now)
        self._held[held.lease] = held
        self._workers.setdefault(worker, _Worker(now)).held[held.lease] = held
        heappush(self._deadlines, (held.deadline, held.lease))
        return Lease(
            id=held.lease,
            episode=work.episode,
            key=work.key,
            split=work.split,
            task=work.task,
            group_seed=work.group_seed,
            seed=work.seed,
            deadline_s=length_s,
        )

    def done(self, done: EpisodeDone) -> bool:
        """Take an episode in. False: the lease is not out any more (posted before, expired, withdrawn), and the post is ignored."""
        held = self._held.get(done.lease)
        if held is None or done.record.id != held.work.episode:
            return False
        self._forget(held)
        self._ledger.record(Done(held.work.episode, done.record.terminal))
        self._on_done(held.worker, done.record)
        return True

    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        """Note what lives; tell the worker which of its leases to stop."""
        now = anyio.current_time()
        worker = self._workers.setdefault(beat.worker, _Worker(now))
        worker.heard = now
        worker.retired = len(beat.leaked) >= self._rules.leaked_threads
        unknown = []
        for named in beat.leases:
            held = worker.held.get(named.lease)
            if held is None:
                unknown.append(named.lease)
            else:
                held.named = now
        if beat.loop_lag_s >= self._rules.frozen_after_s and worker.held:
            self._freeze(beat, worker)
            return HeartbeatReply(cancel=tuple(named.lease for named in beat.leases))
        for held in [held for held in worker.held.values() if now - held.named > self._rules.lost_after_s]:
            self._lose(held, "lost", "the worker does not know the lease")
        return HeartbeatReply(cancel=tuple(unknown))

    def _freeze(self, beat: Heartbeat, worker: _Worker) -> None:
        """Blame the holder; the bystanders are leased again without penalty."""
        for held in list(worker.held.values()):
            if held.lease == beat.holder:
                self._lose(held, "frozen", beat.stack, fault=True)
            else:
                self._lose(held, "released", f"its worker was frozen by {beat.holder or 'unknown code'}")
        self._observer.worker(WorkerEvent(worker=beat.worker, what="frozen", detail=beat.stack))

    def worker_lost(self, name: str, detail: str = "") -> None:
        """The worker died (supervision says so) or fell silent: its episodes are leased again without penalty."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            for held in list(worker.held.values()):
                self._lose(held, "lost", detail or "its worker died")
            self._observer.worker(WorkerEvent(worker=name, what="lost", detail=detail))

    async def watch(self) -> None:
        """Find what expired or fell silent. Runs until cancelled."""
        while True:
            await anyio.sleep(self._rules.watch_every_s)
            now = anyio.current_time()
            while self._deadlines and self._deadlines[0][0] <= now:
                held = self._held.get(heappop(self._deadlines)[1])
                if held is not None and held.deadline <= now:
                    self._lose(held, "expired", f"not posted within {self._lease_s(held.work.task):.0f} s", fault=True)
            for name, worker in list(self._workers.items()):
                if now - worker.heard > self._rules.lost_after_s:
                    if worker.held:
                        self.worker_lost(name, f"silent for {now - worker.heard:.0f} s")
                    else:
                        del self._workers[name]

    def withdraw_all(self) -> None:
        """Take every lease back, without a word on what becomes of the episodes. Workers learn it from their next heartbeat."""
        for held in list(self._held.values()):
            self._forget(held)

    def open(self) -> None:
        """Begin to lease: what an earlier controller left is settled."""
        self._open = True
        self._bell.ring()

    def close(self) -> None:
        """Lease nothing more; what is out may finish."""
        self._open = False

    def stop(self) -> None:
        """Tell every worker that asks that the run is over."""
        self._stopped = True
        self._bell.ring()

    def _lose(self, held: _Held, reason: str, detail: str, *, fault: bool = False) -> None:
        self._forget(held)
        self._on_lost(held.work.episode)
        self._work.fail(held.work.episode, reason, fault=fault, worker=held.worker, detail=detail)
        self._bell.ring()

    def _forget(self, held: _Held) -> None:
        del self._held[held.lease]
        worker = self._workers.get(held.worker)
        if worker is not None:
            worker.held.pop(held.lease, None)
