"""What an engine and its remote callers say to each other: length-prefixed msgpack frames over one stream socket.

Many calls share a connection, told apart by an id that the caller chose. Frames are bounded before they are read into memory, and a peer
that does not read what it asked for is dropped rather than buffered for without end. A plain protocol object parses in the event loop's
callback: a task for reading and one for writing would double the cost of a call.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from agentrl.engine.base import Capabilities, Chunk, EngineStatus, PauseMode
from agentrl.episode import Sampling
from agentrl.errors import AgentRLError, ConfigError, ContextOverflow, EngineError, EngineQuarantined, WeightError
from agentrl.weights.update import WeightUpdate

PROTOCOL = 1
"""Raised when a message changes; both sides must agree."""
MAX_FRAME = 64 << 20
"""bytes"""
_MAX_UNSENT = 256 << 20
"""bytes that may wait for a peer to read"""
_LENGTH = struct.Struct(">I")

Verb = Literal["resume", "sleep", "wake", "status"]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First frame of a caller."""

    protocol: int
    token: str = ""


class Generate(msgspec.Struct, frozen=True, array_like=True, tag=True):
    id: int
    prompt_ids: list[int]
    sampling: Sampling
    session: str
    deadline_s: float
    stream: bool


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nobody listens to this call any more."""

    id: int


class Pause(msgspec.Struct, frozen=True, array_like=True, tag=True):
    id: int
    mode: PauseMode


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag=True):
    id: int
    update: WeightUpdate


class Load(msgspec.Struct, frozen=True, array_like=True, tag=True):
    id: int
    update: WeightUpdate


class Plain(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call without arguments."""

    id: int
    verb: Verb


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First frame of an engine: the caller is let in."""

    capabilities: Capabilities


class Part(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A chunk of a Generate; the last one has a finish_reason."""

    id: int
    chunk: Chunk


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A control call succeeded."""

    id: int
    status: EngineStatus | None = None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call ended with an error, by name. id 0: the connection itself was refused."""

    id: int
    error: str
    message: str


Control = Pause | Prepare | Load | Plain
Request = Hello | Generate | Cancel | Pause | Prepare | Load | Plain
Reply = Welcome | Part | Answer | Failed

_ERRORS: dict[str, type[AgentRLError]] = {
    kind.__name__: kind for kind in (EngineError, ContextOverflow, EngineQuarantined, WeightError, ConfigError)
}


def failed(id: int, error: Exception) -> Failed:
    """An error by the nearest name that the other side knows."""
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), EngineError.__name__)
    return Failed(id, name, str(error) or type(error).__name__)


def to_exception(reply: Failed) -> AgentRLError:
    return _ERRORS.get(reply.error, EngineError)(reply.message)


class Address(msgspec.Struct, frozen=True):
    """`unix:/path/to/socket` or `tcp:127.0.0.1:port`."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Address":
        kind, _, rest = text.partition(":")
        host, _, port = rest.rpartition(":")
        if kind == "unix" and rest:
            return cls(path=rest)
        if kind == "tcp" and host in ("127.0.0.1", "::1", "localhost") and port.isdigit():
            return cls(host=host, port=int(port))
        raise ConfigError(f"{text!r} is no address of an engine; use unix:/path, or tcp:127.0.0.1:port (engines listen on loopback only)")

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"tcp:{self.host}:{self.port}"


class Peer(asyncio.Protocol):
    """One end of a connection. `receive` gets each message, `lost` is called once when the connection is gone."""

    def __init__(self, messages: Any, receive: Callable[["Peer", Any], None], lost: Callable[["Peer"], None]) -> None:
        """`messages` is the union of what may arrive."""
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._encoder = msgspec.msgpack.Encoder()
        self._receive = receive
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.limit = MAX_FRAME
        """bytes that a frame may have"""

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: Request | Reply) -> None:
        """Queue a message; dropped if the connection is gone, for then `lost` tells."""
        if self._transport is None or self._transport.is_closing():
            return
        body = self._encoder.encode(message)
        if len(body) > MAX_FRAME:
            raise EngineError(f"a message of {len(body)} bytes is over the bound of {MAX_FRAME}")
        self._transport.write(_LENGTH.pack(len(body)) + body)
        if self._transport.get_write_buffer_size() > _MAX_UNSENT:
            self._transport.abort()

    def close(self) -> None:
        """Close after what is queued has been written."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > self.limit:
                self.close()
                return
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            try:
                message = self._decoder.decode(memoryview(self._buffer)[at + _LENGTH.size : end])
            except msgspec.DecodeError:
                self.close()
                return
            at = end
            self._receive(self, message)
        del self._buffer[:at]
