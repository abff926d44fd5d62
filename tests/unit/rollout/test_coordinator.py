"""The coordinator finishes what it began, whatever an engine's calls do."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio.testing

from agentrl.engine.base import PauseMode
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineError, WeightError
from agentrl.rollout.coordinator import OnUpdate, UpdateCoordinator, UpdateRules
from agentrl.rollout.observer import Observer, UpdateEvent
from agentrl.weights.update import WeightUpdate

RULES = UpdateRules(prepare_s=10, pause_s=5, load_s=5, resume_s=5, status_s=2, tries=3, retry_after_s=0.1)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def update(version: int, base: int | None = None) -> WeightUpdate:
    return WeightUpdate(version, "shared", f"payload-{version}", (), base)


class Log(Observer):
    def __init__(self) -> None:
        self.outcomes: list[tuple[int, str]] = []

    def update(self, event: UpdateEvent) -> None:
        self.outcomes.append((event.version, event.outcome))


class TroubledEngine(ScriptedEngine):
    """A scripted engine on a bad line: what `before` and `after` do happens before and after the named call takes effect."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: [1])
        self.before: dict[str, list[Callable[[], Awaitable[None]]]] = {}
        self.after: dict[str, list[Callable[[], Awaitable[None]]]] = {}
        self.calls: list[str] = []

    async def _through(self, name: str, call: Callable[..., Awaitable[None]], *args: Any) -> None:
        self.calls.append(name)
        for trouble in [self.before[name].pop(0)] if self.before.get(name) else []:
            await trouble()
        await call(*args)
        for trouble in [self.after[name].pop(0)] if self.after.get(name) else []:
            await trouble()

    async def pause(self, mode: PauseMode) -> None:
        await self._through("pause", super().pause, mode)

    async def prepare(self, update: WeightUpdate) -> None:
        await self._through("prepare", super().prepare, update)

    async def load(self, update: WeightUpdate) -> None:
        await self._through("load", super().load, update)

    async def resume(self) -> None:
        await self._through("resume", super().resume)


async def broken() -> None:
    raise EngineError("the connection broke")


async def silent() -> None:
    await anyio.sleep(100)


@asynccontextmanager
async def coordinating(*engines: ScriptedEngine, on_update: OnUpdate = "keep", observer: Observer | None = None) -> Any:
    served: list[int] = []
    named = {f"e{at}": engine for at, engine in enumerate(engines)}
    coordinator = UpdateCoordinator(named, served_version=0, on_update=on_update, on_served=served.append, rules=RULES, observer=observer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(coordinator.run)
        yield coordinator, served
        tasks.cancel_scope.cancel()


async def settle(coordinator: UpdateCoordinator) -> None:
    with anyio.fail_after(200):
        while not coordinator.settled:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_prepare_goes_before_the_pause_and_resume_follows_the_load() -> None:
    engine = TroubledEngine()
    async with coordinating(engine) as (coordinator, served):
        coordinator.offer(update(1))
        await settle(coordinator)
    assert engine.calls == ["prepare", "pause", "load", "resume"]
    assert served == [1]
    assert (await engine.status()).policy_version == 1


@pytest.mark.parametrize(("call", "where"), [(c, w) for c in ("prepare", "pause", "load", "resume") for w in ("before", "after")])
@pytest.mark.parametrize("trouble", [broken, silent])
async def test_a_call_of_unknown_outcome_is_read_back_and_finished(call: str, where: str, trouble: Callable[[], Awaitable[None]]) -> None:
    engine = TroubledEngine()
    getattr(engine, where)[call] = [trouble]
    async with coordinating(engine) as (coordinator, served):
        coordinator.offer(update(1))
        await settle(coordinator)
    status = await engine.status()
    assert (status.policy_version, status.paused, served) == (1, False, [1])


async def test_a_failed_load_is_loaded_again_in_full() -> None:
    engine, log = TroubledEngine(), Log()
    engine.fail_load()
    async with coordinating(engine, observer=log) as (coordinator, _):
        coordinator.offer(update(1))
        await settle(coordinator)
    status = await engine.status()
    assert (status.policy_version, status.paused, status.quarantined) == (1, False, False)
    assert log.outcomes == [(1, "quarantined"), (1, "served")]


async def test_a_quarantined_engine_asks_for_a_full_payload_when_offered_a_delta() -> None:
    engine, log = TroubledEngine(), Log()
    engine.fail_load()
    async with coordinating(engine, observer=log) as (coordinator, served):
        coordinator.offer(update(1, base=0))
        await settle(coordinator)
        assert coordinator.wants_full
        assert served == []
        coordinator.offer(update(2))
        assert not coordinator.wants_full
        await settle(coordinator)
        assert served == [2]
    assert not (await engine.status()).paused


async def test_the_newest_update_wins_and_the_older_is_skipped() -> None:
    engine, log = TroubledEngine(), Log()
    engine.before["prepare"] = [lambda: anyio.sleep(1)]
    async with coordinating(engine, observer=log) as (coordinator, served):
        coordinator.offer(update(1))
        await anyio.sleep(0.5)
        coordinator.offer(update(2))
        coordinator.offer(update(3))
        await settle(coordinator)
    assert served == [1, 3]
    assert (2, "skipped") in log.outcomes


async def test_served_is_the_oldest_version_of_any_live_engine() -> None:
    fast, slow = TroubledEngine(), TroubledEngine()
    slow.before["prepare"] = [lambda: anyio.sleep(5)]
    async with coordinating(fast, slow) as (coordinator, served):
        coordinator.offer(update(1))
        await anyio.sleep(1)
        assert (await fast.status()).policy_version == 1
        assert served == []
        await settle(coordinator)
        assert served == [1]


async def test_a_lost_engine_is_dropped_and_the_others_go_on() -> None:
    good, bad, log = TroubledEngine(), TroubledEngine(), Log()
    bad.before["prepare"] = [broken] * 3
    async with coordinating(good, bad, observer=log) as (coordinator, served):
        coordinator.offer(update(1))
        await settle(coordinator)
        assert served == [1]
        assert (1, "lost") in log.outcomes


async def test_the_last_lost_engine_ends_the_run() -> None:
    engine = TroubledEngine()
    engine.before["prepare"] = [broken] * 3
    coordinator = UpdateCoordinator({"e0": engine}, served_version=0, on_update="keep", on_served=lambda version: None, rules=RULES)
    coordinator.offer(update(1))
    with pytest.raises(ExceptionGroup) as failure:
        await coordinator.run()
    assert failure.group_contains(EngineError, match="did not take version 1 in 3 tries: the connection broke")


async def test_a_cancelled_update_leaks_no_pause() -> None:
    engine = TroubledEngine()
    engine.before["load"] = [silent]
    async with coordinating(engine) as (coordinator, _):
        coordinator.offer(update(1))
        await anyio.sleep(0.5)
        assert (await engine.status()).paused
    assert not (await engine.status()).paused


async def test_a_pause_left_by_a_dead_coordinator_is_resumed() -> None:
    engine = TroubledEngine()
    await engine.pause("keep")
    async with coordinating(engine):
        await anyio.sleep(0.5)
        assert not (await engine.status()).paused


@pytest.mark.parametrize(("on_update", "mode"), [("keep", "keep"), ("prefix_resume", "abort")])
async def test_on_update_names_the_pause(on_update: OnUpdate, mode: str) -> None:
    modes: list[str] = []

    class Noting(TroubledEngine):
        async def pause(self, mode: PauseMode) -> None:
            modes.append(mode)
            await super().pause(mode)

    async with coordinating(Noting(), on_update=on_update) as (coordinator, _):
        coordinator.offer(update(1))
        await settle(coordinator)
    assert modes == [mode]


async def test_a_torn_payload_yields_to_a_newer_one() -> None:
    async def torn_after_a_while() -> None:
        await anyio.sleep(1)
        raise WeightError("torn")

    engine, log = TroubledEngine(), Log()
    engine.before["prepare"] = [torn_after_a_while]
    async with coordinating(engine, observer=log) as (coordinator, served):
        coordinator.offer(update(1))
        await anyio.sleep(0.5)
        coordinator.offer(update(2))
        await settle(coordinator)
    assert served == [2]
    assert log.outcomes[0] == (1, "refused")
