"""Tasks by the page: once each, in order, and with what went wrong."""

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from agentrl import Env, Task
from agentrl.env import Calls
from agentrl.rollout.pages import TaskPages
from agentrl.rollout.wire import TaskPage, TaskRequest


def request(start: int, count: int, *, epoch: int = 0, deadline_s: float = 20) -> TaskRequest:
    return TaskRequest(id=f"r{start}", split="train", epoch=epoch, start=start, count=count, deadline_s=deadline_s)


def pages_of(env: Env) -> TaskPages:
    return TaskPages(env, calls=Calls(), worker="w")


def prompts(page: TaskPage) -> list[str]:
    return [task["prompt"] for task in page.tasks]


class Ten(Env):
    made = 0
    opened = 0

    def tasks(self, split: str) -> Iterator[Task]:
        self.opened += 1
        for n in range(10):
            self.made += 1
            yield Task(str(n))


class TenAsync(Env):
    async def tasks(self, split: str) -> AsyncIterator[Task]:  # type: ignore[override]
        for n in range(10):
            yield Task(str(n))


class TenInAList(Env):
    def tasks(self, split: str) -> list[Task]:
        return [Task(str(n)) for n in range(10)]


async def test_the_iterator_is_kept_between_pages() -> None:
    env = Ten()
    pages = pages_of(env)
    assert prompts(await pages.page(request(0, 4))) == ["0", "1", "2", "3"]
    assert prompts(await pages.page(request(4, 4))) == ["4", "5", "6", "7"]
    assert (env.opened, env.made) == (1, 8)


async def test_the_end_is_told_and_another_epoch_starts_anew() -> None:
    for env in (Ten(), TenAsync(), TenInAList()):
        pages = pages_of(env)
        await pages.page(request(0, 8))
        last = await pages.page(request(8, 8))
        assert (prompts(last), last.end, last.request, last.worker) == (["8", "9"], True, "r8", "w")
        assert prompts(await pages.page(request(0, 2, epoch=1))) == ["0", "1"]


async def test_any_start_is_found_by_skipping() -> None:
    for env in (Ten(), TenAsync(), TenInAList()):
        pages = pages_of(env)
        assert prompts(await pages.page(request(6, 2))) == ["6", "7"]
        assert prompts(await pages.page(request(1, 2))) == ["1", "2"]


async def test_what_was_given_before_a_failure_is_kept() -> None:
    class Fails(Env):
        def tasks(self, split: str) -> Iterator[Any]:
            yield Task("0")
            raise OSError("row 1 is torn")

    page = await pages_of(Fails()).page(request(0, 8))
    assert (prompts(page), page.end) == (["0"], False)
    assert page.error is not None
    assert (page.error.kind, page.error.message) == ("OSError", "tasks: OSError: row 1 is torn")
    assert "torn" in page.error.traceback


async def test_what_is_no_task_is_refused() -> None:
    class Rows(Env):
        def tasks(self, split: str) -> Any:
            return [{"prompt": "x"}]

    class One(Env):
        def tasks(self, split: str) -> Any:
            return 7

    errors = [(await pages_of(env).page(request(0, 8))).error for env in (Rows(), One(), Env())]
    assert [error.message.split(";")[0] if error else "" for error in errors] == [
        "tasks() yielded dict",
        "tasks('train') gave int",
        "Env gives no tasks: define tasks(self, split) and yield Task(…)",
    ]


async def test_a_split_that_hangs_meets_its_deadline_and_is_opened_anew() -> None:
    release = threading.Event()

    class Hangs(Env):
        def tasks(self, split: str) -> Iterator[Task]:
            yield Task("0")
            release.wait(20)
            yield Task("1")

    pages = pages_of(Hangs())
    page = await pages.page(request(0, 8, deadline_s=0.05))
    assert page.error is not None
    assert page.error.message == "tasks took longer than 0.05 s"
    release.set()
    assert prompts(await pages.page(request(0, 8))) == ["0", "1"]
