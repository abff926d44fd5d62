"""Batches worked by hand: denominators, the staleness bound, minibatches, and steps without tokens."""

import pytest

from agentrl.ledger import Ledger
from agentrl.ledger.entry import Published, Rejected, Served, Trained
from agentrl.objective import advantage_of
from agentrl.rollout.feed import Feed
from agentrl.rollout.observer import BatchEvent, DropEvent, Observer
from agentrl.rollout.policy import Window
from agentrl.rollout.schedule import Schedule
from tests.unit.ledger.build import issued, name, score, scored_group, scored_run


class Log(Observer):
    def __init__(self) -> None:
        self.batches: list[BatchEvent] = []
        self.drops: list[DropEvent] = []

    def batch(self, event: BatchEvent) -> None:
        self.batches.append(event)

    def drop(self, event: DropEvent) -> None:
        self.drops.append(event)


def setting(*, window: int = 1, **numbers: int) -> tuple[Ledger, Feed, Log]:
    ledger, log = Ledger.in_memory(), Log()
    ledger.record(Published(0), Served(0))
    schedule = Schedule(**{"steps": 100, "groups_per_step": 2, **numbers})
    return ledger, Feed(ledger, Window(window), schedule, advantage_of("default"), observer=log), log


def serve(ledger: Ledger, version: int) -> None:
    ledger.record(Published(version))
    ledger.record(Served(version))


def test_kept_tokens_alone_make_the_denominator() -> None:
    ledger, feed, log = setting()
    scored_group(ledger, "a", [0.0, 1.0], index=0)
    scored_group(ledger, "b", [1.0, 1.0], index=1)
    feed.close_all_ready()
    assert feed.ready
    (minibatch,) = feed.make().minibatches
    assert [episode.episode for episode in minibatch.episodes] == [name("a", 0), name("a", 1)]
    assert [run.advantage for episode in minibatch.episodes for run in episode.runs] == [-0.5, 0.5]
    assert minibatch.trained_tokens == 20
    assert [(drop.reason, drop.reward) for drop in log.drops] == [("equal_rewards", 1.0)] * 2
    assert (log.batches[0].groups, log.batches[0].dropped_groups, log.batches[0].reward) == (2, 1, 0.75)


def test_over_bound_tokens_are_masked_before_episodes_are_evicted() -> None:
    ledger, feed, log = setting(groups_per_step=1)
    for version in (1, 2, 3):
        serve(ledger, version)
    ledger.record(issued("a", 0, size=2), issued("a", 1, size=2))
    old, mixed = scored_run(name("a", 0), 0.0, tokens=10, version=1), scored_run(name("a", 1), 1.0)
    score(ledger, name("a", 0), old)
    mixed.versions.update({0: 3, 1: 5, 2: 4, 3: 2})
    score(ledger, name("a", 1), mixed)
    feed.close_all_ready()
    batch = feed.make()
    assert (batch.policy_version, batch.oldest_version) == (3, 2)
    (minibatch,) = batch.minibatches
    assert [episode.episode for episode in minibatch.episodes] == [name("a", 1)]
    assert minibatch.episodes[0].runs[0].advantage == 0.5
    assert minibatch.trained_tokens == 4 + 2
    assert ledger.state.episodes[name("a", 0)].reason == "stale"
    assert (log.batches[0].masked_tokens, log.batches[0].staleness_max) == (10 + 3 + 5, 1)
    assert log.batches[0].staleness_mean == pytest.approx(4 / 6)
    assert [drop.reason for drop in log.drops] == ["stale"]


def test_minibatches_are_whole_groups_of_about_equal_tokens() -> None:
    ledger, feed, _ = setting(groups_per_step=4, minibatches=2)
    for at, tokens in enumerate([40, 30, 20, 10]):
        ledger.record(*(issued(f"t{at}", member, size=2, index=at) for member in range(2)))
        for member in range(2):
            score(ledger, name(f"t{at}", member), scored_run(name(f"t{at}", member), float(member), tokens=tokens))
    feed.close_all_ready()
    batch = feed.make()
    tasks = [sorted({episode.episode[:2] for episode in minibatch.episodes}) for minibatch in batch.minibatches]
    assert tasks == [["t0", "t3"], ["t1", "t2"]]
    assert [minibatch.trained_tokens for minibatch in batch.minibatches] == [100, 100]
    assert [minibatch.step for minibatch in batch.minibatches] == [1, 2]


def test_a_batch_of_dropped_groups_is_steps_without_tokens() -> None:
    ledger, feed, _ = setting(minibatches=2)
    scored_group(ledger, "a", [1.0, 1.0], index=0)
    ledger.record(issued("b", 0, size=1, index=1))
    ledger.record(Rejected(name("b", 0), "frozen"))
    feed.close_all_ready()
    batch = feed.make()
    assert [(minibatch.step, minibatch.episodes, minibatch.trained_tokens) for minibatch in batch.minibatches] == [(1, (), 0), (2, (), 0)]
    ledger.record(Trained(1))
    ledger.record(Trained(2))
    assert ledger.state.groups == {}


def test_the_last_batch_is_cut_to_the_steps_left() -> None:
    ledger, feed, _ = setting(steps=1, groups_per_step=1, minibatches=3)
    scored_group(ledger, "a", [0.0, 1.0])
    feed.close_all_ready()
    assert [minibatch.step for minibatch in feed.make().minibatches] == [1]


def test_oldest_groups_go_first() -> None:
    ledger, feed, _ = setting(groups_per_step=1)
    ledger.record(issued("slow", 0, size=1, index=0))
    scored_group(ledger, "fast", [0.0, 1.0], index=1)
    score(ledger, name("slow", 0), scored_run(name("slow", 0), 1.0))
    feed.close_all_ready()
    feed.make()
    assert [group.task_id for group in ledger.state.ready.values()] == ["fast"]


def test_asking_again_gives_the_rest_of_the_batch() -> None:
    ledger, feed, _ = setting(minibatches=2)
    scored_group(ledger, "a", [0.0, 1.0], index=0)
    scored_group(ledger, "b", [0.0, 1.0], index=1)
    feed.close_all_ready()
    batch = feed.make()
    assert feed.unfinished() == batch
    ledger.record(Trained(1))
    unfinished = feed.unfinished()
    assert unfinished is not None
    assert unfinished.minibatches == batch.minibatches[1:]
    ledger.record(Trained(2))
    assert feed.unfinished() is None
