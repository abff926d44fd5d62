"""The gateway's HTTP face: who asks, which path, how the answer travels.

Generation calls are known by a session's secret, in any of the headers that clients use or in the path. While a client waits, white space
(or an event-stream comment) keeps its own timeout from firing. Whether an answer arrived is decided here, since only the socket knows.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import msgspec
from aiohttp import web

from agentrl.episode import EpisodeRecord
from agentrl.errors import AgentRLError
from agentrl.gateway import chat, chat_answer
from agentrl.gateway.call import Call
from agentrl.gateway.control import Discard, Session, SessionSpec
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.refusal import Refusal, unauthorized
from agentrl.gateway.session import OpenSession

S = TypeVar("S", bound=msgspec.Struct)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)
_JSON = "application/json"
_MSGPACK = "application/msgpack"


def application(gateway: Gateway, root: Callable[[], str]) -> web.Application:
    """`root` gives the URL that scaffolds reach the gateway under."""
    app = web.Application(client_max_size=gateway.config.body_mb << 20)
    face = _Face(gateway, root)
    for prefix in ("/v1", "/s/{secret}/v1", "/s/{secret}"):
        app.router.add_post(f"{prefix}/chat/completions", face.guarded(face.complete))
        app.router.add_get(f"{prefix}/models", face.models)
        app.router.add_get(f"{prefix}/models/{{model:.+}}", face.model)
    app.router.add_post("/control/sessions", face.guarded(face.open))
    app.router.add_post("/control/seal", face.guarded(face.seal))
    app.router.add_post("/control/discard", face.guarded(face.discard))
    app.router.add_get("/control/status", face.guarded(face.status))
    for probe in ("/", "/health", "/api/hello"):
        app.router.add_get(probe, face.alive)
    app.router.add_route("*", "/{path:.*}", face.nothing_here)
    return app


class _Face:
    def __init__(self, gateway: Gateway, root: Callable[[], str]) -> None:
        self._gateway = gateway
        self._root = root

    def guarded(self, handler: Handler) -> Handler:
        """Refusals become the dialect's errors."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except Refusal as refusal:
                return _refused(refusal)
            except web.HTTPRequestEntityTooLarge:
                limit = self._gateway.config.body_mb
                return _refused(Refusal(413, "request_too_large", f"the body is over {limit} MB; raise gateway.body_mb if it must be"))
            except AgentRLError as cause:
                return _refused(Refusal(500, "failed", str(cause)))
            except ConnectionError:
                raise  # the client is gone; there is nobody to answer
            except Exception as bug:
                _log.exception("%s %s met a defect of the gateway", request.method, request.path)
                return _refused(Refusal(500, "internal_error", f"the gateway failed: {type(bug).__name__}; its log has the details"))

        return handle

    async def complete(self, request: web.Request) -> web.StreamResponse:
        gateway = self._gateway
        secret = _secret(request)
        gateway.session(secret)  # refused before the body is read, and again if the session was closed meanwhile
        body = await request.read()
        session = gateway.session(secret)
        asked = chat.ChatRequest(body)
        key = hash((body, request.headers.get("idempotency-key")))
        call = _repeated(session, key, request)
        if call is None:
            for wish in asked.wishes(session.spec):
                gateway.counters.wishes[wish] += 1
            call = gateway.start(session, asked.order(session.known, gateway.tools))
            session.remember(key, call)
        call.listeners += 1
        delivered = False
        try:
            answer = _stream if asked.stream else _whole
            response, delivered = await answer(request, call, asked, gateway.config.keepalive_s)
            return response
        finally:
            gateway.leave(session, call, delivered=delivered)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response(chat_answer.models(self._gateway.context_length))

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response(chat_answer.model(request.match_info["model"], self._gateway.context_length))

    async def open(self, request: web.Request) -> web.Response:
        session = self._gateway.open(await self._control(request, SessionSpec))
        return _packed(Session(secret=session.secret, base_url=f"{self._root()}/s/{session.secret}/v1"))

    async def seal(self, request: web.Request) -> web.Response:
        return _packed(await self._gateway.seal(await self._control(request, EpisodeRecord)))

    async def discard(self, request: web.Request) -> web.Response:
        await self._gateway.discard((await self._control(request, Discard)).episode)
        return _packed({})

    async def status(self, request: web.Request) -> web.Response:
        self._authorize(request)
        return _packed(self._gateway.status())

    async def alive(self, request: web.Request) -> web.Response:
        return web.Response(body=b"{}", content_type=_JSON)

    async def nothing_here(self, request: web.Request) -> web.Response:
        return _refused(Refusal(404, "not_found", f"{request.method} {request.path} is not served here"))

    async def _control(self, request: web.Request, kind: type[S]) -> S:
        self._authorize(request)
        try:
            return msgspec.msgpack.decode(await request.read(), type=kind)
        except msgspec.MsgspecError as cause:
            raise Refusal(400, "invalid_type", f"not a {kind.__name__}: {cause}") from cause

    def _authorize(self, request: web.Request) -> None:
        if not self._gateway.controls(_bearer(request) or ""):
            raise unauthorized()


def _secret(request: web.Request) -> str:
    headers = request.headers
    found = request.match_info.get("secret") or _bearer(request) or headers.get("x-api-key") or headers.get("x-goog-api-key")
    return found or ""


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _repeated(session: OpenSession, key: int, request: web.Request) -> Call | None:
    """The call that this request repeats: it says so, or the earlier answer to this very body provably did not arrive."""
    earlier = session.recent.get(key)
    if earlier is None or earlier.refusal is not None or earlier.scope.cancel_called:
        return None
    marked = request.headers.get("x-stainless-retry-count", "0") != "0" or "idempotency-key" in request.headers
    return earlier if marked or earlier.delivered is False else None


async def _whole(request: web.Request, call: Call, asked: chat.ChatRequest, keepalive_s: float) -> tuple[web.StreamResponse, bool]:
    """The response, and whether it arrived."""
    early: web.StreamResponse | None = None
    while not call.ended:
        with anyio.move_on_after(keepalive_s):
            await call.end_reached()
        if not call.ended:
            early = early or await _prepared(request, _JSON)
            await early.write(b" ")
    if call.outcome is None:
        return _failed(request, call, early)
    body = chat_answer.completion(call, call.outcome, asked.model)
    if early is None:
        return await _sent(request, web.Response(body=body, content_type=_JSON))
    await early.write(body)
    return await _sent(request, early)


async def _stream(request: web.Request, call: Call, asked: chat.ChatRequest, keepalive_s: float) -> tuple[web.StreamResponse, bool]:
    writer = chat_answer.ChunkWriter(call, asked.model, include_usage=asked.include_usage)
    response: web.StreamResponse | None = None
    heard = 0
    while not (call.ended and heard == len(call.deltas)):
        with anyio.move_on_after(keepalive_s):
            await call.ended_or_said(heard)
        if call.refusal is not None:
            return _failed(request, call, response)
        news = b"".join(map(writer.delta, call.deltas[heard:]))
        heard = len(call.deltas)
        if response is None:
            response = await _prepared(request, "text/event-stream")
            news = writer.first() + news
        await response.write(news or b": waiting\n\n")
    if call.outcome is None:
        return _failed(request, call, response)
    if response is None:
        response = await _prepared(request, "text/event-stream")
        await response.write(writer.first())
    await response.write(writer.last(call.outcome))
    return await _sent(request, response)


async def _prepared(request: web.Request, content_type: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    await response.prepare(request)
    return response


async def _sent(request: web.Request, response: web.StreamResponse) -> tuple[web.StreamResponse, bool]:
    """Send all of it now, to see whether the connection still stood."""
    if not response.prepared:
        await response.prepare(request)
    await response.write_eof()
    return response, request.transport is not None and not request.transport.is_closing()


def _failed(request: web.Request, call: Call, begun: web.StreamResponse | None) -> tuple[web.StreamResponse, bool]:
    """An error answer; an answer that has begun can only be cut off, which clients take for what it is."""
    assert call.refusal is not None
    if begun is None:
        return _refused(call.refusal), True
    if request.transport is not None:
        request.transport.abort()
    return begun, False


def _refused(refusal: Refusal) -> web.Response:
    return web.Response(status=refusal.status, body=chat_answer.error(refusal), content_type=_JSON)


def _packed(value: object) -> web.Response:
    return web.Response(body=msgspec.msgpack.encode(value), content_type=_MSGPACK)
