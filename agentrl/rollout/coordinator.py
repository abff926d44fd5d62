"""The UpdateCoordinator: the one place that pauses, loads and resumes engines.

An update is prepared (transferred, checked, staged) while the engine generates, then committed between a pause and a resume that are as
close together as the copy allows. The newest update wins: one that arrives while another is being moved replaces any that wait. Each
engine is driven by itself, so a slow one holds nobody, and what counts as served is the oldest version that a live engine samples from.

Nothing is assumed of a call that failed or did not answer: the engine's status is read back, and what it says is finished. A pause that
happened is resumed even if this run is being cancelled; an engine that a failed load quarantined gets a full load again, or is given up.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import anyio
import msgspec

from agentrl.engine.base import Engine, EngineStatus, PauseMode
from agentrl.errors import AgentRLError, EngineError, boundary
from agentrl.rollout.bell import Bell
from agentrl.rollout.observer import Observer, UpdateEvent
from agentrl.weights.update import WeightUpdate

OnUpdate = Literal["keep", "prefix_resume"]
_PAUSE: dict[OnUpdate, PauseMode] = {"keep": "keep", "prefix_resume": "abort"}


class UpdateRules(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines, in seconds, of each call to an engine, and how often a move is tried before the engine is given up."""

    prepare_s: float = 120.0
    pause_s: float = 30.0
    load_s: float = 60.0
    resume_s: float = 30.0
    status_s: float = 10.0
    tries: int = 3
    retry_after_s: float = 0.5


@dataclass(slots=True)
class _Driven:
    """An engine and what is known of it."""

    name: str
    engine: Engine
    version: int
    """What it samples from."""
    begun: int = -1
    """The newest version that was moved to it, whatever came of it."""
    moving: bool = False
    lost: bool = False


class UpdateCoordinator:
    """Moves weights to engines. `offer` never waits; `run` does the work."""

    def __init__(
        self,
        engines: dict[str, Engine],
        *,
        served_version: int,
        on_update: OnUpdate,
        on_served: Callable[[int], None],
        rules: UpdateRules | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`served_version`: what the engines hold at the start. `on_served(version)`: every live engine has that version or a later one."""
        self._rules = rules or UpdateRules()
        self._mode = _PAUSE[on_update]
        self._on_served = on_served
        self._observer = observer or Observer()
        self._driven = [_Driven(name, engine, served_version) for name, engine in engines.items()]
        self._served = served_version
        self._newest: WeightUpdate | None = None
        self._bell = Bell()
        self.wants_full = False
        """A quarantined engine was offered a delta: it serves nothing until a full payload is published."""

    @property
    def settled(self) -> bool:
        """No engine has an update before it or in hand."""
        newest = -1 if self._newest is None else self._newest.version
        return all(driven.lost or (driven.begun >= newest and not driven.moving) for driven in self._driven)

    def offer(self, update: WeightUpdate) -> None:
        """A publication. An older one that no engine has begun is skipped."""
        older = self._newest
        if older is not None and update.version <= older.version:
            return
        if older is not None and all(driven.begun < older.version for driven in self._driven):
            self._observer.update(UpdateEvent(version=older.version, engine="", outcome="skipped"))
        self._newest = update
        self.wants_full = self.wants_full and update.base is not None
        self._bell.ring()

    async def run(self) -> None:
        """Bring every engine to the newest update, again and again. Raises EngineError when the last engine is lost."""
        async with anyio.create_task_group() as tasks:
            for driven in self._driven:
                tasks.start_soon(self._drive, driven)

    async def _drive(self, driven: _Driven) -> None:
        await self._reconcile(driven)
        while not driven.lost:
            update = self._newest
            if update is None or update.version <= driven.begun:
                await self._bell.wait()
                continue
            driven.begun, driven.moving = update.version, True
            try:
                await self._move(driven, update)
            finally:
                driven.moving = False
            self._count_served()

    async def _reconcile(self, driven: _Driven) -> None:
        """Finish what an earlier coordinator left: an engine that it paused and did not resume."""
        status = await self._read(driven.engine)
        if status is not None:
            driven.version = status.policy_version
            if status.paused and not status.quarantined:
                await self._resume(driven.engine, certain=True)

    async def _move(self, driven: _Driven, update: WeightUpdate) -> None:
        """Prepare and commit. Ends with the engine serving the update, waiting for a newer or a full one, or lost."""
        for attempt in range(1, self._rules.tries + 1):
            try:
                started = time.monotonic()
                if attempt == 1 or not await self._has(driven.engine, update):
                    await self._call("prepare", self._rules.prepare_s, driven.engine.prepare(update))
                prepared = time.monotonic()
                await self._commit(driven.engine, update)
            except AgentRLError as cause:
                if await self._stays(driven, update, cause, last=attempt == self._rules.tries):
                    return
                await anyio.sleep(self._rules.retry_after_s)
            else:
                driven.version = update.version
                self._tell(driven, update, "served", prepare_s=prepared - started, gap_s=time.monotonic() - prepared)
                return

    async def _stays(self, driven: _Driven, update: WeightUpdate, cause: AgentRLError, *, last: bool) -> bool:
        """After a failed try: whether this update is to be left alone."""
        status = await self._read(driven.engine)
        if status is not None and status.quarantined:
            self._tell(driven, update, "quarantined", detail=str(cause))
            if update.base is not None:
                self.wants_full = True
                return True
        elif self._newest is not None and self._newest.version > update.version:
            self._tell(driven, update, "refused", detail=str(cause))
            return True
        if last:
            self._lose(driven, update, cause)
        return last

    def _lose(self, driven: _Driven, update: WeightUpdate, cause: AgentRLError) -> None:
        driven.lost = True
        self._tell(driven, update, "lost", detail=str(cause))
        if all(other.lost for other in self._driven):
            raise EngineError(
                f"engine {driven.name!r} did not take version {update.version} in {self._rules.tries} tries: {cause}"
            ) from cause

    async def _has(self, engine: Engine, update: WeightUpdate) -> bool:
        """An earlier try went further than it could tell: the weights are in, the resume is not."""
        status = await self._read(engine)
        return status is not None and status.policy_version == update.version and not status.quarantined

    async def _commit(self, engine: Engine, update: WeightUpdate) -> None:
        certain = False
        try:
            await self._pause(engine)
            await self._load(engine, update)
            certain = True
        finally:
            # Also on cancellation: a pause that leaks stops generation for good.
            with anyio.CancelScope(shield=True):
                await self._resume(engine, certain=certain)

    async def _pause(self, engine: Engine) -> None:
        try:
            await self._call("pause", self._rules.pause_s, engine.pause(self._mode))
        except AgentRLError:
            status = await self._read(engine)
            if status is None or not status.paused:
                raise

    async def _load(self, engine: Engine, update: WeightUpdate) -> None:
        try:
            await self._call("load", self._rules.load_s, engine.load(update))
        except AgentRLError:
            status = await self._read(engine)
            if status is None or status.quarantined or status.policy_version != update.version:
                raise

    async def _resume(self, engine: Engine, *, certain: bool) -> None:
        """Until the engine says that it is not paused. A quarantined one stays so: it has nothing to serve."""
        failure: AgentRLError | None = None
        for attempt in range(self._rules.tries):
            status = None if certain and attempt == 0 else await self._read(engine)
            if status is not None and (status.quarantined or not status.paused):
                return
            try:
                await self._call("resume", self._rules.resume_s, engine.resume())
            except AgentRLError as cause:
                failure = cause
            else:
                return
        raise EngineError(f"the engine is paused and does not resume: {failure}")

    async def _read(self, engine: Engine) -> EngineStatus | None:
        """The engine's own word; None if it gives none."""
        try:
            with anyio.fail_after(self._rules.status_s):
                return await engine.status()
        except (AgentRLError, TimeoutError, OSError):
            return None

    async def _call(self, what: str, within_s: float, call: Awaitable[None]) -> None:
        with boundary(EngineError, what):
            try:
                with anyio.fail_after(within_s):
                    await call
            except TimeoutError as cause:
                raise EngineError(f"{what}: no answer within {within_s:g} s") from cause

    def _count_served(self) -> None:
        served = min((driven.version for driven in self._driven if not driven.lost), default=self._served)
        if served > self._served:
            self._served = served
            self._on_served(served)

    def _tell(
        self, driven: _Driven, update: WeightUpdate, outcome: str, *, detail: str = "", prepare_s: float = 0.0, gap_s: float = 0.0
    ) -> None:
        self._observer.update(
            UpdateEvent(version=update.version, engine=driven.name, outcome=outcome, detail=detail, prepare_s=prepare_s, gap_s=gap_s)
        )
