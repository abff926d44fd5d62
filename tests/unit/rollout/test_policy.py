"""The policies' arithmetic, by hand."""

import pytest

from agentrl.rollout.policy import Progress, Window, policy_of
from agentrl.rollout.schedule import Schedule

EACH = Schedule(steps=100, groups_per_step=4)


def progress(schedule: Schedule = EACH, **numbers: int) -> Progress:
    return Progress(**{"schedule": schedule, "unconsumed": 0, "steps_made": 0, "published_version": 0, "served_version": 0, **numbers})


@pytest.mark.parametrize(
    ("schedule", "after", "through", "count"),
    [
        (Schedule(steps=10, groups_per_step=1), 0, 3, 3),
        (Schedule(steps=10, groups_per_step=1, publish_every=4), 0, 3, 0),
        (Schedule(steps=10, groups_per_step=1, publish_every=4), 0, 9, 2),
        (Schedule(steps=10, groups_per_step=1, publish_every=4), 0, 10, 3),
        (Schedule(steps=10, groups_per_step=1, publish_every=4), 8, 10, 1),
        (Schedule(steps=8, groups_per_step=1, publish_every=4), 0, 8, 2),
    ],
)
def test_publications_come_every_so_many_steps_and_after_the_last(schedule: Schedule, after: int, through: int, count: int) -> None:
    assert schedule.publications(after=after, through=through) == count


def test_sync_has_exactly_one_batch_out() -> None:
    sync = policy_of("sync", window=7)
    assert [sync.admits(progress(unconsumed=n)) for n in (0, 3, 4, 5)] == [True, True, False, False]


def test_sync_waits_for_the_steps_weights_to_be_served() -> None:
    sync = policy_of("sync", window=7)
    made = {"steps_made": 1}
    assert not sync.admits(progress(**made))
    assert not sync.admits(progress(**made, published_version=1))
    assert sync.admits(progress(**made, published_version=1, served_version=1))


def test_a_window_lets_k_more_batches_be_out() -> None:
    assert [Window(2).admits(progress(unconsumed=n)) for n in (4, 11, 12)] == [True, True, False]


def test_minibatches_publish_more_versions_a_batch() -> None:
    four = Schedule(steps=100, groups_per_step=4, minibatches=4)
    assert [progress(four, unconsumed=n).ahead for n in (0, 4, 8)] == [0, 4, 8]
    assert progress(four, steps_made=4, published_version=2, served_version=1).ahead == 3


def test_counting_starts_where_the_process_did() -> None:
    resumed = progress(steps_made=50, start_step=50, start_version=70, published_version=70, served_version=70)
    assert resumed.ahead == 0


def test_no_more_groups_are_issued_than_the_run_can_consume() -> None:
    last = progress(Schedule(steps=10, groups_per_step=4, minibatches=2), steps_made=9, unconsumed=4)
    assert not last.needed


def test_the_bound_is_k_versions() -> None:
    assert Window(2).oldest_version(7) == 5
    assert Window(2).oldest_version(1) == 0
