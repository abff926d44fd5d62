"""Hands items to one waiting coroutine at the lowest price: a list and a bare future, where a memory channel would be three objects a call.

A deadline is one timer that puts its error into the box; a cancel scope around every wait would cost more than the wait.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Mailbox:
    """Outcomes for one waiting coroutine. Filled and emptied in the event loop's thread."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> Any:
        """The next item. Raises it if it is an exception."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    @contextmanager
    def deadline(self, seconds: float, error: Callable[[], Exception]) -> Iterator[None]:
        """Inside, `take` raises `error()` when so many seconds have passed and nothing else is left."""
        timer = asyncio.get_running_loop().call_later(seconds, lambda: self.put(error()))
        try:
            yield
        finally:
            timer.cancel()
