"""Evaluations: the same tasks each time, failures left out and counted, never trained."""

from math import sqrt
from typing import Any

import anyio
import pytest
import trio.testing

from agentrl.errors import EnvError
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Done, Published, Running, Scored, Served
from agentrl.rollout.bell import Bell
from agentrl.rollout.evaluation import EvaluationResult, Evaluator, TaskRewards
from agentrl.rollout.observer import EvaluationEvent, Observer
from agentrl.rollout.wire import TaskPage
from agentrl.rollout.work import Work, WorkList
from tests.unit.ledger.build import scored_run


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Room:
    """An evaluator whose episodes the test runs."""

    def __init__(self, *, tasks: int, samples: int = 1, split: int = 100) -> None:
        self.ledger = Ledger.in_memory()
        self.ledger.record(Published(3), Served(3))
        self.split = split
        self.seeds: list[list[int]] = []
        self.work = WorkList(self.ledger, seed=0, retries=0, on_closed=lambda group: self.evaluator.closed(group), observer=Observer())
        self.evaluator = Evaluator(
            self.ledger, self.work, tasks=tasks, samples=samples, page=4, deadline_s=10, observer=Observer(), bell=Bell()
        )

    async def give_tasks(self) -> None:
        await anyio.sleep(0.1)
        while request := self.evaluator.request():
            rows = range(request.start, min(request.start + request.count, self.split))
            page = TaskPage("w", request.id, tuple({"id": f"e{row}"} for row in rows), end=rows.stop == self.split and not rows)
            self.evaluator.accept(page)

    async def run_episodes(self, rewards: list[float | None]) -> None:
        """None: the episode fails."""
        await anyio.sleep(1)
        seeds = []
        for reward in rewards:
            work = self.work.take()
            assert work is not None
            seeds.append(work.seed)
            self.finish(work, reward)
        self.seeds.append(seeds)

    def finish(self, work: Work, reward: float | None) -> None:
        self.ledger.record(Running(work.episode, "w"))
        if reward is None:
            self.work.fail(work.episode, "error", fault=True)
            return
        self.ledger.record(Done(work.episode, "finished"))
        self.ledger.record(Scored(work.episode, "h", (scored_run(work.episode, reward, version=3),), reward))
        self.work.finished(work.episode)

    async def evaluate(self, step: int, rewards: list[float | None]) -> EvaluationResult:
        results: list[EvaluationResult] = []

        async def once() -> None:
            results.append(await self.evaluator.evaluate(step))

        with anyio.fail_after(100):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(once)
                tasks.start_soon(self.give_tasks)
                tasks.start_soon(self.run_episodes, rewards)
        return results[0]


async def test_the_mean_and_its_standard_error_over_tasks() -> None:
    room = Room(tasks=6)
    event = (await room.evaluate(10, [1.0, 0.0, 1.0, 1.0, None, 0.0])).event
    assert (event.step, event.reward, event.episodes, event.failed, event.versions) == (10, 0.6, 5, 1, (3, 3))
    assert event.stderr == pytest.approx(sqrt(0.3) / sqrt(5))
    assert not room.ledger.state.ready
    assert not room.ledger.state.groups


async def test_every_evaluation_runs_the_same_tasks_with_the_same_seeds() -> None:
    room = Room(tasks=3)
    for step in (0, 5):
        await room.evaluate(step, [1.0, 0.0, 1.0])
    assert room.seeds[0] == room.seeds[1]
    assert room.ledger.state.next_evaluation == 2


async def test_a_small_split_is_evaluated_whole() -> None:
    event = (await Room(tasks=50, split=4).evaluate(0, [1.0] * 4)).event
    assert (event.episodes, event.stderr) == (4, 0.0)


async def test_an_empty_split_is_said_plainly() -> None:
    with pytest.raises(ExceptionGroup) as failure:
        await Room(tasks=5, split=0).evaluate(0, [])
    assert failure.group_contains(EnvError, match="gave no tasks")


async def test_samples_of_a_task_are_averaged_first() -> None:
    result = await Room(tasks=2, samples=2).evaluate(0, [1.0, 0.0, 1.0, 1.0])
    assert result.event.reward == 0.75
    assert result.event.stderr == pytest.approx(0.25)
    assert (result.pass_at(1), result.pass_at(2)) == (0.75, 1.0)


def test_pass_at_k_by_hand() -> None:
    """One of four right: pass@2 = 1 - C(3,2)/C(4,2) = 1/2."""
    event = EvaluationEvent(evaluation=0, step=0, reward=0.25, stderr=0.0, episodes=4, failed=0, versions=(0, 0))
    result = EvaluationResult(event, (TaskRewards("t", (1.0, 0.0, 0.0, 0.0)),))
    assert result.pass_at(2) == pytest.approx(0.5)
    assert result.pass_at(5) is None
