"""Tasks by the page: a split's iterator is kept between pages, so that streaming an infinite split costs each task once."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import msgspec

from agentrl.env import Calls, Env, Split, Task
from agentrl.env.lifecycle import describe
from agentrl.episode import ErrorRecord
from agentrl.errors import AgentRLError, EnvError
from agentrl.rollout.wire import TaskPage, TaskRequest

FIRST_S = 120.0


class _Stream(msgspec.Struct):
    epoch: int
    position: int
    source: Iterator[Any] | AsyncIterator[Any]


class _Taken(msgspec.Struct):
    tasks: list[dict[str, Any]]
    end: bool = False
    error: ErrorRecord | None = None


class TaskPages:
    """The tasks of one worker's environment."""

    def __init__(self, env: Env, *, calls: Calls, worker: str) -> None:
        self._env = env
        self._calls = calls
        self._worker = worker
        self._streams: dict[str, _Stream] = {}
        self._locks = {"train": anyio.Lock(), "eval": anyio.Lock()}

    async def page(self, request: TaskRequest) -> TaskPage:
        """What `tasks(split)` gives next; what it gave before it failed is kept, with the error."""
        async with self._locks[request.split]:
            taken = await self._take(request)
        return TaskPage(worker=self._worker, request=request.id, tasks=tuple(taken.tasks), end=taken.end, error=taken.error)

    async def _take(self, request: TaskRequest) -> _Taken:
        stream = self._streams.pop(request.split, None)
        try:
            if stream is None or (stream.epoch, stream.position) != (request.epoch, request.start):
                stream = _Stream(epoch=request.epoch, position=0, source=await self._open(request))
            read = _read_async if isinstance(stream.source, AsyncIterator) else _read
            skip = request.start - stream.position
            taken: _Taken = await self._calls("tasks", read, stream.source, skip, request.count, deadline_s=request.deadline_s)
        except AgentRLError as failure:
            return _Taken(tasks=[], error=describe(failure, "tasks"))
        if not taken.end and taken.error is None:
            stream.position = request.start + len(taken.tasks)
            self._streams[request.split] = stream
        return taken

    async def _open(self, request: TaskRequest) -> Iterator[Any] | AsyncIterator[Any]:
        tasks = await self._calls("tasks", self._env.tasks, request.split, deadline_s=request.deadline_s)
        if isinstance(tasks, AsyncIterator):
            return tasks
        try:
            opened: Iterator[Any] = iter(tasks)
            return opened
        except TypeError as cause:
            raise EnvError(
                f"tasks({request.split!r}) gave {type(tasks).__name__}; yield Task(…) from it, or return a list of them"
            ) from cause


async def first_tasks(env: Env, split: Split, count: int) -> list[Task]:
    """Outside a worker. Raises EnvError for whatever is wrong with `tasks`."""
    request = TaskRequest(id="first", split=split, epoch=0, start=0, count=count, deadline_s=FIRST_S)
    page = await TaskPages(env, calls=Calls(), worker="").page(request)
    if page.error is not None:
        raise EnvError(f"environment {env.name}: {page.error.message}")
    return [Task.from_builtins(task) for task in page.tasks]


def _read(source: Iterator[Any], skip: int, count: int) -> _Taken:
    """In a thread, a page at a time."""
    taken = _Taken(tasks=[])
    try:
        for task in itertools.islice(source, skip, skip + count):
            taken.tasks.append(_plain(task))
    except Exception as failure:
        taken.error = _named(failure)
    else:
        taken.end = len(taken.tasks) < count
    return taken


async def _read_async(source: AsyncIterator[Any], skip: int, count: int) -> _Taken:
    taken = _Taken(tasks=[])
    try:
        while len(taken.tasks) < count:
            task = await anext(source)
            if skip:
                skip -= 1
            else:
                taken.tasks.append(_plain(task))
    except StopAsyncIteration:
        taken.end = True
    except Exception as failure:
        taken.error = _named(failure)
    return taken


def _plain(task: Any) -> dict[str, Any]:
    if not isinstance(task, Task):
        raise EnvError(f"tasks() yielded {type(task).__name__}; yield agentrl.Task(…)")
    return task.to_builtins()


def _named(failure: Exception) -> ErrorRecord:
    if isinstance(failure, AgentRLError):
        return describe(failure, "tasks")
    named = EnvError(f"tasks: {type(failure).__name__}: {failure}")
    named.__cause__ = failure
    return describe(named, "tasks")
