"""User code is called here and nowhere else: async functions on the loop, sync ones in threads, all with a deadline.

A thread cannot be killed. When a sync function outlives its deadline the episode goes on at once, and the thread is counted as leaked
until it returns by itself; a worker reports the count, so that the controller can replace the process.
"""

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread

from agentrl.errors import AgentRLError, EnvError


class Overtime(EnvError):
    """User code outlived its deadline."""


class Calls:
    """Calls user code for many episodes of one worker."""

    def __init__(self, threads: int = 512) -> None:
        self._threads = threads
        self._limiter: anyio.CapacityLimiter | None = None
        self._tickets = itertools.count()
        self._running: dict[int, str] = {}
        self._abandoned: set[int] = set()

    @property
    def leaked(self) -> tuple[str, ...]:
        """What the threads do that outlived their deadline and still run."""
        self._abandoned &= set(self._running)
        return tuple(self._running[ticket] for ticket in self._abandoned)

    async def __call__(self, where: str, function: Callable[..., Any], *args: Any, deadline_s: float) -> Any:
        """`where` names the call in errors. Raises EnvError for what the function raises, Overtime after deadline_s seconds."""
        with anyio.move_on_after(deadline_s):
            try:
                if inspect.iscoroutinefunction(function):
                    return await function(*args)
                result = await self._in_thread(where, function, args)
                return await result if inspect.isawaitable(result) else result
            except (Exception, SystemExit, KeyboardInterrupt) as raised:
                cause = only(raised)
                if isinstance(cause, AgentRLError):
                    raise cause from cause.__cause__
                raise EnvError(f"{where}: {type(cause).__name__}: {cause}") from cause
            except asyncio.CancelledError as cause:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                raise EnvError(f"{where}: CancelledError: it waited for something of its own that was cancelled") from cause
        raise Overtime(f"{where} took longer than {deadline_s:g} s")

    async def _in_thread(self, where: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._limiter = self._limiter or anyio.CapacityLimiter(self._threads)
        ticket = next(self._tickets)

        def work() -> Any:
            self._running[ticket] = where
            try:
                return function(*args)
            finally:
                del self._running[ticket]
                self._abandoned.discard(ticket)

        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except anyio.get_cancelled_exc_class():
            self._abandoned.add(ticket)
            raise


def only(raised: BaseException) -> BaseException:
    """The one exception inside task groups' groups; of several errors made for people the first, as one cause fails many at once."""
    leaves = list(_leaves(raised))
    return leaves[0] if len(leaves) == 1 or all(isinstance(leaf, AgentRLError) for leaf in leaves) else raised


def _leaves(raised: BaseException) -> Iterator[BaseException]:
    if isinstance(raised, BaseExceptionGroup):
        for inner in raised.exceptions:
            yield from _leaves(inner)
    else:
        yield raised
