"""The default loop's way to the model: Chat Completions on the gateway's own wire, without an SDK.

The same requests as any outside scaffold makes, so the gateway has one kind of client; but encoded and decoded by msgspec over one aiohttp
pool, because a general SDK costs several milliseconds of CPU a call.
"""

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import aiohttp
import anyio
import msgspec
from yarl import URL

from agentrl.engine.config import SamplingConfig
from agentrl.env import Reply, Session, SessionRequest
from agentrl.episode import ChatMessage, ToolCall, ToolSpec
from agentrl.errors import GatewayError, LimitReached
from agentrl.gateway.control import Session as Opened
from agentrl.gateway.control import SessionSpec

BACKOFF_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0)
"""Before each retry: 9 seconds in all."""
CONTEXT_CODE = "context_length_exceeded"
_LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ssl.SSLError)


class Door:
    """A worker's connections to the gateway. `async with Door(…) as door: session = await door(request)`."""

    def __init__(self, url: str, *, token: str, sampling: SamplingConfig, backoff_s: Sequence[float] = BACKOFF_S) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._sampling = sampling
        self._backoff_s = backoff_s

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self.http = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            await self.http.close()

    async def __call__(self, request: SessionRequest) -> Session:
        """Open a session. Raises GatewayError."""
        body = msgspec.msgpack.encode(self._spec(request))
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/msgpack"}
        status, answer = await self.post(URL(f"{self._url}/control/sessions"), body, headers, doing=f"open session {request.agent_run}")
        if status != 200:
            raise GatewayError(f"open session {request.agent_run}: the gateway answered {status}: {_told(answer)}")
        opened = msgspec.msgpack.decode(answer, type=Opened)
        return ModelSession(self, opened, model=request.model, agent_run=request.agent_run)

    def _spec(self, request: SessionRequest) -> SessionSpec:
        run, wish = self._sampling, request.sampling
        return SessionSpec(
            episode=request.episode,
            agent_run=request.agent_run,
            policy=request.model,
            trained=request.trained,
            temperature=run.temperature if wish.temperature is None else wish.temperature,
            top_p=run.top_p if wish.top_p is None else wish.top_p,
            top_k=run.top_k if wish.top_k is None else wish.top_k,
            min_p=run.min_p if wish.min_p is None else wish.min_p,
            seed=wish.seed,
            tokens_per_turn=request.bounds.tokens_per_turn,
            tokens=request.bounds.tokens,
        )

    async def post(self, url: URL, body: bytes, headers: Mapping[str, str], *, doing: str) -> tuple[int, bytes]:
        """Status and body. Lost connections, 429 and 5xx are tried again, marked as the retry that they are. Raises GatewayError."""
        trouble = ""
        for attempt, wait_s in enumerate((0.0, *self._backoff_s)):
            if attempt:
                await anyio.sleep(wait_s)
                headers = {**headers, "x-stainless-retry-count": str(attempt)}
            try:
                async with self.http.post(url, data=body, headers=headers) as response:
                    answer = await response.read()
                if response.status != 429 and response.status < 500:
                    return response.status, answer
                trouble = f"it answered {response.status}: {_told(answer)}"
            except _LOST as lost:
                trouble = f"{type(lost).__name__}: {lost}"
        raise GatewayError(
            f"{doing}: no answer from the gateway at {url.origin()} after {len(self._backoff_s) + 1} attempts; last: {trouble}"
        )


class ModelSession:
    """One agent run's line to the model."""

    def __init__(self, door: Door, opened: Opened, *, model: str, agent_run: str) -> None:
        self.base_url = opened.base_url
        self.secret = opened.secret
        self._door = door
        self._url = URL(f"{opened.base_url}/chat/completions")
        self._headers = {"Authorization": f"Bearer {opened.secret}", "Content-Type": "application/json"}
        self._model = model
        self._agent_run = agent_run
        self._calls = 0

    async def call(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Reply:
        self._calls += 1
        doing = f"call {self._calls} of {self._agent_run}"
        request = _Request(
            model=self._model, messages=[_wire(message) for message in messages], tools=[_Tool(function=spec) for spec in tools]
        )
        headers = {**self._headers, "idempotency-key": f"{self._agent_run}.{self._calls}"}
        status, answer = await self._door.post(self._url, msgspec.json.encode(request), headers, doing=doing)
        if status != 200:
            raise _refusal(status, answer, doing)
        try:
            return _reply(msgspec.json.decode(answer, type=_Response))
        except msgspec.DecodeError as cause:
            raise GatewayError(f"{doing}: the answer is not a chat completion: {cause}") from cause

    async def close(self) -> None:
        """Sealing the episode closes its sessions."""


def _refusal(status: int, answer: bytes, doing: str) -> GatewayError | LimitReached:
    message = f"{doing}: the gateway answered {status}: {_told(answer)}"
    if status == 400 and CONTEXT_CODE.encode() in answer:
        return LimitReached("context", message)
    return GatewayError(message)


def _told(answer: bytes) -> str:
    return answer[:500].decode(errors="replace")


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str = ""


class _Call(msgspec.Struct, frozen=True):
    id: str
    function: _Function
    type: str = "function"


class _Tool(msgspec.Struct, frozen=True):
    function: ToolSpec
    type: str = "function"


class _Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str = ""
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Request(msgspec.Struct, frozen=True, omit_defaults=True):
    model: str
    messages: list[_Message]
    tools: list[_Tool] = []


class _Choice(msgspec.Struct, frozen=True):
    message: _Message
    finish_reason: str = "stop"


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int = 0


class _Response(msgspec.Struct, frozen=True):
    id: str
    choices: tuple[_Choice, ...]
    usage: _Usage = _Usage()


def _wire(message: ChatMessage) -> _Message:
    calls = tuple(_Call(id=call.id, function=_Function(call.name, call.arguments)) for call in message.tool_calls)
    return _Message(
        role=message.role,
        content=message.content,
        reasoning_content=message.reasoning,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _reply(response: _Response) -> Reply:
    """The turn's id is the response's, so structure and tokens are joined without any token leaving the gateway."""
    choice = response.choices[0]
    if choice.finish_reason not in ("stop", "length", "tool_calls"):
        raise GatewayError(f"turn {response.id} ended with {choice.finish_reason!r}, which is no end of a turn")
    said = choice.message
    return Reply(
        turn=response.id.removeprefix("chatcmpl-"),
        message=ChatMessage(
            role="assistant",
            content=said.content or "",
            reasoning=said.reasoning_content,
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments) for call in said.tool_calls or ()
            ),
        ),
        finish="length" if choice.finish_reason == "length" else "stop",
        completion_tokens=response.usage.completion_tokens,
    )
