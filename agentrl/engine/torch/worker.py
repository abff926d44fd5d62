"""The engine's thread: it alone touches the model, the calls and their KV.

Everything asked of it is a function that it runs between two forwards, so an update is atomic by construction. What it has to say goes back
to the event loop once per step, however many calls got tokens.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import torch

from agentrl.engine.mailbox import Mailbox
from agentrl.engine.torch.scheduler import Scheduler
from agentrl.errors import AgentRLError, EngineError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Worker:
    """Runs a scheduler. Made in the event loop that will receive the outcomes."""

    def __init__(self, scheduler: Scheduler, *, threads: int) -> None:
        self._scheduler = scheduler
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outbox: list[tuple[Mailbox, Any]] = []
        self._when_drained: list[Mailbox] = []
        self._thread = threading.Thread(target=self._run, name="agentrl-engine", daemon=True)
        self._thread.start()

    def tell(self, do: Callable[[], None]) -> None:
        """Have `do` run between two forwards."""
        self._inbox.put(do)

    async def ask(self, do: Callable[[], T]) -> T:
        """Run `do` between two forwards; returns what it returns and raises what it raises."""
        mailbox = Mailbox()
        self._inbox.put(lambda: self.post(mailbox, _outcome(do)))
        result: T = await mailbox.take()
        return result

    async def drained(self) -> None:
        """Wait until no call runs, or the drain is given up by a resume."""
        mailbox = Mailbox()
        self._inbox.put(lambda: self._when_drained.append(mailbox))
        await mailbox.take()

    def post(self, mailbox: Mailbox, item: Any) -> None:
        """For the engine's thread: deliver an item at the end of this step."""
        self._outbox.append((mailbox, item))

    async def close(self) -> None:
        """End the thread; calls in flight fail."""
        self._inbox.put(None)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while self._serve_inbox():
                if self._scheduler.has_work:
                    self._step()
                if self._when_drained and (self._scheduler.running == 0 or self._scheduler.paused != "drain"):
                    self._outbox += [(mailbox, None) for mailbox in self._when_drained]
                    self._when_drained.clear()
                self._flush()
            while not self._inbox.empty():
                self._serve_inbox()
            self._scheduler.fail(EngineError("the engine was closed"))
            self._flush()

    def _serve_inbox(self) -> bool:
        """Run what was asked; wait for something if there is nothing else to do. False: close."""
        block = not self._scheduler.has_work
        while True:
            try:
                do = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if do is None:
                return False
            do()
            block = False

    def _step(self) -> None:
        try:
            self._scheduler.step()
        except Exception as cause:
            _log.exception("a forward pass failed")
            self._scheduler.fail(EngineError(f"a forward pass failed ({cause}); its calls may be made again"))

    def _flush(self) -> None:
        if self._outbox:
            self._loop.call_soon_threadsafe(_deliver, self._outbox)
            self._outbox = []


def _outcome(do: Callable[[], Any]) -> Any:
    try:
        return do()
    except AgentRLError as refused:
        return refused
    except Exception as cause:
        failed = EngineError(f"the engine could not do what was asked: {cause}")
        failed.__cause__ = cause
        return failed


def _deliver(outbox: list[tuple[Mailbox, Any]]) -> None:
    for mailbox, item in outbox:
        mailbox.put(item)
