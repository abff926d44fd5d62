"""Hands items to one waiting coroutine at the lowest price: a list and an event, where a memory channel would be three objects a call."""

from typing import Any

import anyio


class Mailbox:
    """Outcomes for one waiting coroutine. Filled and emptied in the event loop's thread."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._event: anyio.Event | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._event is not None:
            self._event.set()

    async def take(self) -> Any:
        """The next item. Raises it if it is an exception."""
        while not self._items:
            self._event = anyio.Event()
            await self._event.wait()
            self._event = None
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item
