"""Something changed: whoever waits looks again. Cheaper than a condition, since all state here belongs to one event loop."""

import anyio


class Bell:
    """`while not (ready): await bell.wait()`. Nothing is lost as long as nothing is awaited between the look and the wait."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        await self._event.wait()
