"""What every installed environment owes its users: right answers earn the full reward, nothing earns none, and splits never meet."""

import itertools

import pytest

from agentrl.env import Env, Gold, OpenSession, Silent, Task, installed, make
from agentrl.episode import EpisodeKey, EpisodeRecord
from agentrl.rollout.run import run_episode
from agentrl.rollout.wire import Lease

TASKS = 40
PLAYED = 5


@pytest.fixture(params=sorted(installed()))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def first(env: Env, split: str, count: int = TASKS) -> list[Task]:
    return list(itertools.islice(env.tasks(split), count))  # type: ignore[arg-type]


async def play(env: Env, task: Task, model: OpenSession) -> EpisodeRecord:
    lease = Lease(
        id="lease",
        episode="episode",
        key=EpisodeKey(0, task.id, 0),
        split="train",
        task=task.to_builtins(),
        group_seed=1,
        seed=2,
        deadline_s=60,
    )
    return await run_episode(env, lease, model)


async def test_gold_scores_one(name: str) -> None:
    env = make(name)
    for task in first(env, "train", PLAYED):
        record = await play(env, task, Gold(env))
        assert (record.reward, record.errors) == (pytest.approx(1.0), ()), task


async def test_an_empty_answer_scores_zero(name: str) -> None:
    env = make(name)
    for task in first(env, "train", PLAYED):
        record = await play(env, task, Silent())
        assert (record.reward, record.errors) == (0.0, ()), task


@pytest.mark.parametrize("split", ["train", "eval"])
def test_ids_are_unique(name: str, split: str) -> None:
    ids = [task.id for task in first(make(name), split)]
    assert ids
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_same_tasks_come_again(name: str, split: str) -> None:
    assert first(make(name), split) == first(make(name), split)


def test_no_task_is_in_both_splits(name: str) -> None:
    env = make(name)
    train, held_out = first(env, "train", 10 * TASKS), first(env, "eval")
    assert not {task.id for task in train} & {task.id for task in held_out}
    asked = {(str(task.prompt), str(task.answer)) for task in train}
    assert not asked & {(str(task.prompt), str(task.answer)) for task in held_out}


def test_tasks_travel_as_plain_data(name: str) -> None:
    for task in first(make(name), "train", PLAYED):
        assert Task.from_builtins(task.to_builtins()) == task
