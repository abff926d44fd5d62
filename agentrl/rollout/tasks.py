"""Tasks come from `Env.tasks()`, which runs in a worker; the controller asks for pages of it and keeps a small supply."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from agentrl.errors import EnvError
from agentrl.rollout.wire import TaskPage, TaskRequest

TRIES = 5


@dataclass(frozen=True, slots=True)
class StreamedTask:
    """A row of a split's epoch."""

    index: int
    id: str
    body: dict[str, Any]


class TaskStream:
    """One split in one epoch, from `start` on. One page is asked for at a time; a page that does not come is asked for again."""

    def __init__(
        self,
        split: Literal["train", "eval"],
        epoch: int,
        start: int,
        *,
        page: int,
        supply: int,
        limit: int | None = None,
        deadline_s: float,
    ) -> None:
        """`supply`: ask for more when fewer are at hand. `limit`: no index reaches it."""
        self.split = split
        self.epoch = epoch
        self.ready: deque[StreamedTask] = deque()
        self.next_index = start
        self._ended = limit is not None and start >= limit
        self._page = page
        self._supply = supply
        self._limit = limit
        self._deadline_s = deadline_s
        self._asked: TaskRequest | None = None
        self._asked_until = 0.0
        self._misses = 0

    @property
    def exhausted(self) -> bool:
        return self._ended and not self.ready

    @property
    def complete(self) -> bool:
        """Everything was streamed; some of it may still be at hand."""
        return self._ended

    def request(self) -> TaskRequest | None:
        """What to ask the next worker for, if anything. Raises EnvError when pages keep failing to come."""
        now = anyio.current_time()
        if self._ended or len(self.ready) >= self._supply or (self._asked and now < self._asked_until):
            return None
        if self._asked:
            self._misses += 1
            if self._misses >= TRIES:
                raise EnvError(
                    f"tasks({self.split!r}) did not give rows {self.next_index} … within {self._deadline_s:.0f} s, {TRIES} times; "
                    "make it yield sooner, or load its data in start()"
                )
        count = self._page if self._limit is None else min(self._page, self._limit - self.next_index)
        name = f"{self.split}/{self.epoch}/{self.next_index}/{self._misses}"
        self._asked = TaskRequest(name, self.split, self.epoch, self.next_index, count, self._deadline_s)
        self._asked_until = now + self._deadline_s + 1.0
        return self._asked

    def answers(self, page: TaskPage) -> bool:
        """Whether the page is the one that was asked for (not a late or repeated one)."""
        return self._asked is not None and page.request == self._asked.id

    def accept(self, page: TaskPage) -> None:
        """Raises EnvError if `tasks()` failed."""
        self._asked, self._misses = None, 0
        if page.error is not None:
            raise EnvError(f"tasks({self.split!r}) failed: {page.error.kind}: {page.error.message}\n{page.error.traceback}".rstrip())
        for body in page.tasks:
            self.ready.append(StreamedTask(self.next_index, _id(body, self.split), body))
            self.next_index += 1
        self._ended = page.end or (self._limit is not None and self.next_index >= self._limit)
        if not page.tasks and not page.end:
            raise EnvError(f"a worker answered for tasks({self.split!r}) with an empty page that is not the end")


def _id(body: dict[str, Any], split: str) -> str:
    found = body.get("id")
    if not isinstance(found, str) or not found:
        raise EnvError(f"tasks({split!r}) gave a row without an id: {str(body)[:200]}")
    return found
