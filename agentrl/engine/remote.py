"""An engine in another process, with the face of one in this.

One connection carries all calls. When it is lost, every call in flight fails with EngineError (its tokens are of unknown fate) and the next
call connects anew: an engine that was restarted needs no new client.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio

from agentrl.engine.base import Capabilities, Chunk, EngineStatus, PauseMode
from agentrl.engine.mailbox import Mailbox
from agentrl.engine.wire import (
    PROTOCOL,
    Address,
    Answer,
    Cancel,
    Control,
    Failed,
    Generate,
    Hello,
    Load,
    Part,
    Pause,
    Peer,
    Plain,
    Prepare,
    Reply,
    Welcome,
    to_exception,
)
from agentrl.episode import Sampling
from agentrl.errors import EngineError
from agentrl.weights.update import WeightUpdate

_GRACE_S = 2.0
"""The engine keeps a call's deadline; this is how much later the caller stops believing it."""


class RemoteEngine:
    """An `Engine` over a socket. An async context: entering it connects and learns the capabilities."""

    def __init__(self, address: str, *, token: str = "", connect_s: float = 10.0, control_s: float = 300.0) -> None:
        """`control_s` bounds every call but generate; draining and loading large payloads take the longest."""
        self._address = Address.parse(address)
        self._token = token
        self._connect_s = connect_s
        self._control_s = control_s
        self._link: _Link | None = None
        self._connecting = anyio.Lock()

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._link is not None:
            self._link.peer.close()

    def capabilities(self) -> Capabilities:
        if self._link is None:
            raise EngineError(f"the engine at {self._address} was not connected yet; use it inside `async with engine:`")
        return self._link.capabilities

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, session: str, deadline_s: float, stream: bool = True
    ) -> AsyncIterator[Chunk]:
        until = time.monotonic() + deadline_s + _GRACE_S
        link = await self._connected()
        id, mailbox = link.open()
        ended = False
        try:
            link.peer.send(Generate(id, prompt_ids, sampling, session, deadline_s, stream))
            with mailbox.deadline(until - time.monotonic(), lambda: self._late(deadline_s)):
                while not ended:
                    chunk: Chunk = await mailbox.take()
                    ended = chunk.finish_reason is not None
                    yield chunk
        finally:
            link.close(id)
            if not ended:
                link.peer.send(Cancel(id))

    def _late(self, deadline_s: float) -> EngineError:
        return EngineError(f"the engine at {self._address} kept a call past its deadline of {deadline_s:g} s; it was given up")

    async def pause(self, mode: PauseMode) -> None:
        await self._control(lambda id: Pause(id, mode))

    async def prepare(self, update: WeightUpdate) -> None:
        await self._control(lambda id: Prepare(id, update))

    async def load(self, update: WeightUpdate) -> None:
        await self._control(lambda id: Load(id, update))

    async def resume(self) -> None:
        await self._control(lambda id: Plain(id, "resume"))

    async def sleep(self) -> None:
        await self._control(lambda id: Plain(id, "sleep"))

    async def wake(self) -> None:
        await self._control(lambda id: Plain(id, "wake"))

    async def status(self) -> EngineStatus:
        status = await self._control(lambda id: Plain(id, "status"))
        if status is None:
            raise EngineError(f"the engine at {self._address} answered a status call without a status")
        return status

    async def _control(self, message: Callable[[int], Control]) -> EngineStatus | None:
        link = await self._connected()
        id, mailbox = link.open()
        try:
            link.peer.send(message(id))
            with _deadline(self._control_s, f"the engine at {self._address} did not answer within {self._control_s:g} s"):
                status: EngineStatus | None = await mailbox.take()
                return status
        finally:
            link.close(id)

    async def _connected(self) -> "_Link":
        if self._link is not None and self._link.peer.alive:
            return self._link
        async with self._connecting:
            if self._link is None or not self._link.peer.alive:
                with _deadline(self._connect_s, f"the engine at {self._address} did not answer within {self._connect_s:g} s"):
                    self._link = await _connect(self._address, self._token)
            return self._link


class _Link:
    """One connection and the calls that wait on it: a lost connection fails its own calls and no others."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ids = itertools.count(1)
        self._mailboxes: dict[int, Mailbox] = {0: Mailbox()}
        """By call; 0 is the greeting."""
        self.peer = Peer(Reply, self._receive, self._lost)
        self.capabilities: Capabilities

    async def greet(self, token: str) -> None:
        self.peer.send(Hello(PROTOCOL, token))
        self.capabilities = await self._mailboxes[0].take()

    def open(self) -> tuple[int, Mailbox]:
        id, mailbox = next(self._ids), Mailbox()
        if not self.peer.alive:
            mailbox.put(self._lost_error())
        self._mailboxes[id] = mailbox
        return id, mailbox

    def close(self, id: int) -> None:
        del self._mailboxes[id]

    def _receive(self, peer: Peer, message: Reply) -> None:
        mailbox = self._mailboxes.get(0 if isinstance(message, Welcome) else message.id)
        if mailbox is None:
            return
        match message:
            case Welcome(capabilities=capabilities):
                mailbox.put(capabilities)
            case Part(chunk=chunk):
                mailbox.put(chunk)
            case Answer(status=status):
                mailbox.put(status)
            case Failed():
                mailbox.put(to_exception(message))

    def _lost(self, peer: Peer) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.put(self._lost_error())

    def _lost_error(self) -> EngineError:
        return EngineError(f"the connection to the engine at {self._address} was lost; the call may be made again")


async def _connect(address: Address, token: str) -> _Link:
    loop = asyncio.get_running_loop()
    link = _Link(address)
    try:
        if address.path:
            await loop.create_unix_connection(lambda: link.peer, address.path)
        else:
            await loop.create_connection(lambda: link.peer, address.host, address.port)
    except OSError as cause:
        raise EngineError(f"no engine at {address} ({cause.strerror}); is its process running?") from cause
    try:
        await link.greet(token)
    except BaseException:
        link.peer.close()
        raise
    return link


@contextmanager
def _deadline(seconds: float, message: str) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise EngineError(f"{message}; it was given up") from None
