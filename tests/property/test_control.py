"""The whole control plane under a virtual clock: whatever the latencies and faults, nothing is lost, doubled, over the bound or stuck."""

import math
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import EnvError
from agentrl.ledger import Ledger
from agentrl.ledger.audit import audit
from agentrl.rollout.controller import Controller, Wind
from agentrl.rollout.policy import Window
from agentrl.rollout.schedule import Schedule
from tests.property.control_simulation import Seen, World, plan_of, run_simulation, simulate

SCHEDULES = st.builds(
    Schedule,
    steps=st.integers(1, 12),
    groups_per_step=st.integers(1, 4),
    minibatches=st.integers(1, 3),
    publish_every=st.integers(1, 3),
)
WORLDS = st.builds(
    World,
    seed=st.integers(0, 10**6),
    workers=st.integers(1, 3),
    capacity=st.integers(1, 9),
    tasks=st.integers(3, 40),
    duplicates=st.integers(0, 2),
    spread=st.floats(0.0, 1.2),
    step_s=st.sampled_from([0.1, 2.0, 20.0]),
    publish_s=st.sampled_from([0.0, 1.0, 30.0]),
    error_rate=st.sampled_from([0.0, 0.2]),
    death_rate=st.sampled_from([0.0, 0.1]),
    freeze_rate=st.sampled_from([0.0, 0.1]),
    lost_reply_rate=st.sampled_from([0.0, 0.1]),
    seal_failure_rate=st.sampled_from([0.0, 0.2]),
    engine_failure_rate=st.sampled_from([0.0, 0.1]),
    equal_reward_rate=st.sampled_from([0.0, 0.3, 1.0]),
    engines=st.integers(1, 2),
)


def run(world: World, schedule: Schedule, window: int, **more: int) -> tuple[Ledger, Seen]:
    ledger = Ledger.in_memory()
    seen = run_simulation(lambda: simulate(world, plan_of(schedule, seed=world.seed, **more), Window(window), ledger), world.seed)
    return ledger, seen


@settings(max_examples=40)
@given(world=WORLDS, schedule=SCHEDULES, window=st.integers(0, 4))
def test_the_bound_holds_and_nothing_is_lost_or_doubled(world: World, schedule: Schedule, window: int) -> None:
    ledger, seen = run(world, schedule, window)
    state = ledger.state
    assert state.steps_done == schedule.steps
    assert all(staleness <= window for staleness in seen.staleness)
    assert not state.in_flight
    assert state.tally["trained"] == len(seen.trained)
    settled = Counter(event.episode for event in seen.episodes)
    assert all(count == 1 for count in settled.values())
    batches = -(-schedule.steps // schedule.minibatches)
    assert sum(batch.groups for batch in seen.batches) == batches * schedule.groups_per_step


@settings(max_examples=12)
@given(world=WORLDS, schedule=SCHEDULES)
def test_sync_masks_nothing(world: World, schedule: Schedule) -> None:
    _, seen = run(world, schedule, 0)
    assert max(seen.staleness, default=0) <= 0
    assert sum(batch.masked_tokens for batch in seen.batches) == 0


@settings(max_examples=12)
@given(world=WORLDS, window=st.integers(0, 3), data=st.data())
def test_a_killed_run_resumes_without_loss(world: World, window: int, data: st.DataObject) -> None:
    """Kill the controller (and all that it drives) a few times; each resume starts from the last checkpoint that the trainer wrote."""
    schedule = Schedule(steps=10, groups_per_step=2, minibatches=2)
    plan = plan_of(schedule, seed=world.seed, eval_tasks=4, eval_every=4)
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        for kill_after in [*data.draw(st.lists(st.floats(0.5, 60.0), max_size=3)), None]:
            ledger = Ledger.open(Path(folder) / "ledger.sqlite", now=lambda: 0.0)
            step = ledger.state.checkpoint.step if ledger.state.checkpoint else 0
            ledger.resume_from(step)
            seen.trained = {episode: at for episode, at in seen.trained.items() if at <= step}
            run_simulation(lambda k=kill_after, led=ledger: killed(simulate(world, plan, Window(window), led, seen=seen), k), world.seed)
            ledger.close()
        report = audit(Path(folder))
    assert report.problems == ()
    assert (report.steps, report.trained, report.in_flight, report.interrupted) == (10, len(seen.trained), 0, 0)
    assert report.ended == "finished"
    assert all(staleness <= window for staleness in seen.staleness)
    assert [event.step for event in seen.evaluations][-1] == 10


@pytest.mark.parametrize("window", [0, 2])
def test_a_resume_makes_no_steps_of_data_too_old_to_train(window: int, tmp_path: Path) -> None:
    """Their groups are generated anew instead of being consumed as so many steps without an update."""
    world, plan, seen = World(seed=4, equal_reward_rate=0.0, step_s=1.0), plan_of(Schedule(steps=60, groups_per_step=3)), Seen()
    for kill_after in (300.0, None):
        ledger = Ledger.open(tmp_path / "ledger.sqlite", now=lambda: 0.0)
        steps = ledger.state.steps_done
        ledger.resume_from(0)
        seen.trained, seen.batches = {}, []
        run_simulation(lambda k=kill_after, led=ledger: killed(simulate(world, plan, Window(window), led, seen=seen), k), 4)
        ledger.close()
    assert steps > 10
    assert all(batch.trained_tokens for batch in seen.batches)
    report = audit(tmp_path)
    assert (report.problems, report.steps) == ((), 60)
    assert report.lost_attempts["stale"] > 0


async def killed(run: Coroutine[Any, Any, Any], after_s: float | None) -> None:
    with anyio.move_on_after(math.inf if after_s is None else after_s):
        await run


@pytest.mark.parametrize("wind", list(Wind))
def test_a_stopped_run_leaves_nothing_in_flight_and_goes_on(wind: Wind, tmp_path: Path) -> None:
    world, plan = World(seed=3), plan_of(Schedule(steps=20, groups_per_step=2))

    async def stop(controller: Controller) -> None:
        await anyio.sleep(25.0)
        controller.stop(wind)

    ledger = Ledger.open(tmp_path / "ledger.sqlite", now=lambda: 0.0)
    seen = run_simulation(lambda: simulate(world, plan, Window(1), ledger, meddle=stop), 3)
    steps = ledger.state.steps_done
    assert 0 < steps < 20
    assert ledger.state.checkpoint.step == steps
    ledger.close()
    report = audit(tmp_path)
    assert (report.problems, report.in_flight, report.ended) == ((), 0, "stopped")
    assert (report.interrupted > 0) == (wind is Wind.NOW)

    ledger = Ledger.open(tmp_path / "ledger.sqlite", now=lambda: 0.0)
    ledger.resume_from(steps)
    run_simulation(lambda: simulate(world, plan, Window(1), ledger, seen=seen), 4)
    ledger.close()
    report = audit(tmp_path)
    assert (report.problems, report.steps, report.interrupted, report.ended) == ((), 20, 0, "finished")


def test_evaluations_come_first_now_and_then_and_last() -> None:
    _, seen = run(World(seed=1), Schedule(steps=6, groups_per_step=2), 1, eval_tasks=9, eval_every=2)
    assert [event.step for event in seen.evaluations] == [0, 2, 4, 6]
    first = seen.evaluations[0]
    assert (first.versions, first.episodes, first.failed) == ((0, 0), 9, 0)
    assert seen.evaluations[-1].versions == (6, 6)


def test_a_run_that_never_learns_ends_all_the_same() -> None:
    """Every group has equal rewards: all steps are without tokens, and nobody waits for data or versions that do not come."""
    ledger, seen = run(World(seed=2, equal_reward_rate=1.0), Schedule(steps=5, groups_per_step=2), 0)
    assert (ledger.state.steps_done, seen.trained) == (5, {})
    assert {drop.reason for drop in seen.drops} == {"equal_rewards"}


def test_tasks_that_repeat_for_ever_are_said_plainly() -> None:
    with pytest.raises(ExceptionGroup) as failure:
        run(World(seed=2, tasks=10**6, duplicates=10**6), Schedule(steps=5, groups_per_step=2), 1)
    assert failure.group_contains(EnvError, match="gave 1000 tasks in a row that its epoch already had")


def test_the_same_seed_gives_the_same_run() -> None:
    world = World(seed=5, error_rate=0.1, death_rate=0.05, freeze_rate=0.05, seal_failure_rate=0.1, engine_failure_rate=0.05)
    first, second = (run(world, Schedule(steps=8, groups_per_step=2), 2)[1] for _ in range(2))
    assert (first.trained, first.finished_at, first.episodes) == (second.trained, second.finished_at, second.episodes)


def test_the_overtaken_are_masked_before_they_are_evicted() -> None:
    """Long episodes among short ones, training fast: the tokens within the bound are trained, also of episodes that began too early."""
    _, seen = run(World(seed=1, spread=1.2, capacity=12, step_s=1.0, turns=8), Schedule(steps=20, groups_per_step=2), 1)
    masked = sum(batch.masked_tokens for batch in seen.batches)
    partly = [e for e in seen.trained if len(seen.tokens[f"{e}.main"]) > 2]
    assert masked > 0
    assert partly
    assert max(seen.staleness) == 1
