"""Any engine behind a socket, for the gateway and the coordinator of the same host.

A call is cancelled when its caller says so or is gone, so no slot works for nobody. Control calls are not: an update that has begun ends,
and the caller reads its outcome back with `status`.
"""

import asyncio
import hmac
import logging
import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from agentrl.engine.base import Engine
from agentrl.engine.wire import (
    MAX_FRAME,
    PROTOCOL,
    Address,
    Answer,
    Cancel,
    Control,
    Generate,
    Hello,
    Load,
    Part,
    Pause,
    Peer,
    Plain,
    Prepare,
    Request,
    Welcome,
    failed,
)
from agentrl.errors import AgentRLError, ConfigError, EngineError

_HELLO_S = 5.0
"""Seconds that a caller has to say who it is."""
_HELLO_BYTES = 4096

_log = logging.getLogger(__name__)


async def serve(engine: Engine, address: str, *, token: str = "", task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve until cancelled; `task_status` is told the address (with the real port). A TCP address needs a token."""
    at = Address.parse(address)
    if at.host and not token:
        raise ConfigError(f"{address}: any local user can reach a TCP port; give a token, or use a unix socket")
    peers: set[Peer] = set()
    async with anyio.create_task_group() as calls:
        server = await _listen(at, lambda: _Caller(engine, token, calls, peers).peer)
        try:
            if at.host:
                at = Address(host=at.host, port=server.sockets[0].getsockname()[1])
            task_status.started(str(at))
            await anyio.sleep_forever()
        finally:
            server.close()
            for peer in peers:
                peer.close()
            _remove_socket(at)


async def _listen(at: Address, accept: Callable[[], Peer]) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if not at.path:
        return await loop.create_server(accept, at.host, at.port)
    mask = os.umask(0o177)
    try:
        return await loop.create_unix_server(accept, at.path)
    finally:
        os.umask(mask)


def _remove_socket(at: Address) -> None:
    if at.path:
        Path(at.path).unlink(missing_ok=True)


class _Caller:
    """One connection, as the engine's side sees it."""

    def __init__(self, engine: Engine, token: str, calls: TaskGroup, peers: set[Peer]) -> None:
        self._engine = engine
        self._token = token
        self._calls = calls
        self._peers = peers
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._welcome = False
        self.peer = Peer(Request, self._receive, self._lost)
        self.peer.limit = _HELLO_BYTES
        peers.add(self.peer)
        self._hello_timer = asyncio.get_running_loop().call_later(_HELLO_S, self.peer.close)

    def _receive(self, peer: Peer, message: Request) -> None:
        if not self._welcome:
            self._greet(message)
        elif isinstance(message, Generate):
            self._calls.start_soon(self._generate, message)
        elif isinstance(message, Cancel):
            if message.id in self._scopes:
                self._scopes[message.id].cancel()
        elif not isinstance(message, Hello):
            self._calls.start_soon(self._control, message)

    def _greet(self, message: Request) -> None:
        self._hello_timer.cancel()
        if not isinstance(message, Hello) or message.protocol != PROTOCOL:
            self.peer.send(failed(0, EngineError(f"this engine speaks protocol {PROTOCOL}; use the same version of agentrl on both sides")))
            self.peer.close()
        elif not hmac.compare_digest(message.token.encode(), self._token.encode()):
            self.peer.send(failed(0, EngineError("the engine refused the token; give the one it was started with")))
            self.peer.close()
        else:
            self._welcome = True
            self.peer.limit = MAX_FRAME
            self.peer.send(Welcome(self._engine.capabilities()))

    def _lost(self, peer: Peer) -> None:
        self._peers.discard(peer)
        self._hello_timer.cancel()
        for scope in self._scopes.values():
            scope.cancel()

    async def _generate(self, call: Generate) -> None:
        with anyio.CancelScope() as scope:
            self._scopes[call.id] = scope
            if not self.peer.alive:
                scope.cancel()
            try:
                chunks = self._engine.generate(
                    call.prompt_ids, call.sampling, session=call.session, deadline_s=call.deadline_s, stream=call.stream
                )
                # Every engine's generate is an async generator; closing it is what frees the slot.
                async with aclosing(chunks):  # type: ignore[type-var]
                    async for chunk in chunks:
                        self.peer.send(Part(call.id, chunk))
            except Exception as error:
                self._fail(call.id, error)
            finally:
                del self._scopes[call.id]

    async def _control(self, call: Control) -> None:
        try:
            await self._obey(call)
            status = await self._engine.status() if isinstance(call, Plain) and call.verb == "status" else None
            self.peer.send(Answer(call.id, status))
        except Exception as error:
            self._fail(call.id, error)

    async def _obey(self, call: Control) -> None:
        match call:
            case Pause(mode=mode):
                await self._engine.pause(mode)
            case Prepare(update=update):
                await self._engine.prepare(update)
            case Load(update=update):
                await self._engine.load(update)
            case Plain(verb="resume"):
                await self._engine.resume()
            case Plain(verb="sleep"):
                await self._engine.sleep()
            case Plain(verb="wake"):
                await self._engine.wake()

    def _fail(self, id: int, error: Exception) -> None:
        if not isinstance(error, AgentRLError):
            _log.error("a call of the engine failed", exc_info=error)
        self.peer.send(failed(id, error))
