"""From a posted record to a scored episode: the gateway joins it with its turns into one blob, and the ledger keeps the handle.

The worker is answered before that, so a slow disk holds nobody's slot; posted records wait here, a bounded number sealed at a time. Nobody
posts an episode whose lease was lost: the gateway is told to forget it, or its sessions would stay open for the rest of the run.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio

from agentrl.episode import EpisodeRecord, Sealed
from agentrl.errors import GatewayError, StoreError
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Scored, ScoredRun
from agentrl.rollout.observer import EpisodeEvent, Observer
from agentrl.rollout.work import WorkList

TRIES = 3


class Sealer(Protocol):
    """Closes an episode's books."""

    async def seal(self, record: EpisodeRecord) -> Sealed:
        """Idempotent. Raises GatewayError or StoreError."""
        ...

    async def discard(self, episode: str) -> None:
        """Forget the episode's turns. Raises GatewayError."""
        ...


class Sealing:
    """Takes posted records in, and settles their episodes; has lost ones forgotten."""

    def __init__(
        self,
        ledger: Ledger,
        work: WorkList,
        sealer: Sealer,
        *,
        on_settled: Callable[[], None],
        observer: Observer,
        at_once: int = 8,
        deadline_s: float = 60.0,
        pause_s: float = 1.0,
    ) -> None:
        self._ledger = ledger
        self._work = work
        self._sealer = sealer
        self._on_settled = on_settled
        self._observer = observer
        self._at_once = at_once
        self._deadline_s = deadline_s
        self._pause_s = pause_s
        self._send, self._receive = anyio.create_memory_object_stream[tuple[str, EpisodeRecord]](math.inf)
        self.pending = 0
        """Records taken in and not settled."""
        self._lost, self._next_lost = anyio.create_memory_object_stream[str](math.inf)

    def take(self, worker: str, record: EpisodeRecord) -> None:
        self._send.send_nowait((worker, record))
        self.pending += 1

    def forget(self, episode: str) -> None:
        """Its lease was lost."""
        self._lost.send_nowait(episode)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._at_once):
                tasks.start_soon(self._settle_all)
            tasks.start_soon(self._forget_lost)

    async def _settle_all(self) -> None:
        while True:
            worker, record = await self._receive.receive()
            await self._settle(worker, record)
            self.pending -= 1
            self._on_settled()

    async def _forget_lost(self) -> None:
        async for episode in self._next_lost:
            await self._close_books(self._sealer.discard(episode))

    async def _settle(self, worker: str, record: EpisodeRecord) -> None:
        """Scored, or rejected with its reason; a failed episode's turns are kept for `agentrl show` only if it is not run again."""
        if not self._expected(record.id):
            return
        if reason := _failure(record):
            again = self._work.fail(record.id, reason, fault=True, worker=worker, detail=_why(record), terminal=record.terminal)
            await self._close_books(self._sealer.discard(record.id) if again else self._sealer.seal(record))
            return
        try:
            sealed = await self._seal(record)
        except (GatewayError, StoreError) as cause:
            if self._expected(record.id):
                self._work.fail(record.id, "unsealed", fault=True, worker=worker, detail=str(cause), terminal=record.terminal)
            return
        if not self._expected(record.id):
            return
        self._ledger.record(_scored(record, sealed))
        self._work.finished(record.id)
        self._observer.episode(_event(worker, record, sealed))

    async def _seal(self, record: EpisodeRecord) -> Sealed:
        for attempt in range(TRIES):
            try:
                with anyio.fail_after(self._deadline_s):
                    return await self._sealer.seal(record)
            except (GatewayError, TimeoutError) as cause:
                if attempt + 1 == TRIES:
                    raise GatewayError(f"the gateway did not seal {record.id}: {cause or 'no answer'}") from cause
            await anyio.sleep(self._pause_s)
        raise AssertionError("unreachable")

    def _expected(self, episode: str) -> bool:
        """Not given up meanwhile, as at the end of a run."""
        member = self._ledger.state.episodes.get(episode)
        return member is not None and member.status == "done"

    async def _close_books(self, call: Awaitable[object]) -> None:
        """Of an episode that is rejected, whatever comes of the call."""
        with suppress(GatewayError, StoreError), anyio.move_on_after(self._deadline_s):
            await call


def _failure(record: EpisodeRecord) -> str:
    """Why the episode leaves its group, if it does: what failed was not the policy."""
    if record.terminal in ("error", "cancelled"):
        return record.terminal
    if any(run.reward is not None and not math.isfinite(run.reward) for run in record.agent_runs):
        return "bad_reward"
    return ""


def _why(record: EpisodeRecord) -> str:
    return "; ".join(f"{error.where}: {error.kind}: {error.message}" for error in record.errors[:3])[:2000]


def _scored(record: EpisodeRecord, sealed: Sealed) -> Scored:
    runs = []
    for run in record.agent_runs:
        stats = sealed.runs.get(run.id)
        runs.append(
            ScoredRun(
                agent_run=run.id,
                group=run.group,
                policy=run.policy,
                trained=run.trained,
                reward=run.reward,
                sampled=stats.sampled if stats else 0,
                versions=stats.versions if stats else {},
            )
        )
    return Scored(record.id, sealed.handle, tuple(runs), record.reward)


def _event(worker: str, record: EpisodeRecord, sealed: Sealed) -> EpisodeEvent:
    placements: Counter[str] = Counter()
    untrainable: Counter[str] = Counter()
    for stats in sealed.runs.values():
        placements.update(stats.placements)
        untrainable.update(stats.untrainable)
    return EpisodeEvent(
        episode=record.id,
        split=record.split,
        task_id=record.key.task_id,
        worker=worker,
        reward=record.reward,
        terminal=record.terminal,
        turns=sum(stats.turns for stats in sealed.runs.values()),
        sampled_tokens=sum(stats.sampled for stats in sealed.runs.values()),
        placements=dict(placements),
        untrainable=dict(untrainable),
        duration_s=record.ended_at - record.started_at,
    )
