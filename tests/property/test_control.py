"""The whole control plane under a virtual clock: whatever the latencies and faults, nothing is lost, doubled, over the bound or stuck."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.ledger import Ledger
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


@settings(max_examples=120)
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


@settings(max_examples=40)
@given(world=WORLDS, schedule=SCHEDULES)
def test_sync_masks_nothing(world: World, schedule: Schedule) -> None:
    _, seen = run(world, schedule, 0)
    assert set(seen.staleness) <= {0, *(s for s in seen.staleness if s < 0)}
    assert sum(batch.masked_tokens for batch in seen.batches) == 0
