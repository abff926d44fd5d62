"""The controller's routes: `wire.py`'s messages over HTTP, and nothing else. Every route needs the run's token; bodies are bounded.

A long poll holds its connection for at most what it asked for, so that a proxy or a dead peer never holds one for ever.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from agentrl.errors import AgentRLError, LedgerError
from agentrl.ledger.feed import CheckpointReport, StepReport
from agentrl.rollout.controller import Controller
from agentrl.rollout.wire import EpisodeDone, Heartbeat, LeaseRequest, TaskPage
from agentrl.weights.update import WeightUpdate

BODY_BYTES = 64 * 2**20
BATCH_POLL_S = 30.0
M = TypeVar("M")
Answer = Callable[[M], Awaitable[Any]]
_encode = msgspec.msgpack.Encoder().encode


def application(controller: Controller, *, token: str, body_bytes: int = BODY_BYTES) -> web.Application:
    """The routes over one controller."""
    app = web.Application(client_max_size=body_bytes, middlewares=[_door(token)])
    app.add_routes([web.post(path, handler) for path, handler in _routes(controller).items()])
    return app


@asynccontextmanager
async def serve(controller: Controller, *, token: str, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve while the context is open; yields the base URL. `port` 0: any free one."""
    runner = web.AppRunner(application(controller, token=token), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _routes(controller: Controller) -> dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
    async def done(message: EpisodeDone) -> dict[str, Any]:
        return _expected(controller.done(message), f"lease {message.lease} is not out any more (posted before, expired or withdrawn)")

    async def tasks(message: TaskPage) -> dict[str, Any]:
        return _expected(controller.tasks(message), f"task request {message.request} is not waited for any more")

    async def heartbeat(message: Heartbeat) -> Any:
        return controller.heartbeat(message)

    async def batch(_: dict[str, Any]) -> Any:
        return await controller.next_batch(BATCH_POLL_S)

    async def step(message: StepReport) -> dict[str, Any]:
        controller.step(message)
        return {}

    async def ready(message: WeightUpdate) -> dict[str, Any]:
        controller.ready(message)
        return {}

    async def checkpoint(message: CheckpointReport) -> dict[str, Any]:
        controller.checkpoint(message)
        return {}

    return {
        "/worker/lease": _handler(LeaseRequest, controller.lease),
        "/worker/heartbeat": _handler(Heartbeat, heartbeat),
        "/worker/done": _handler(EpisodeDone, done),
        "/worker/tasks": _handler(TaskPage, tasks),
        "/trainer/batch": _handler(dict[str, Any], batch),
        "/trainer/step": _handler(StepReport, step),
        "/trainer/ready": _handler(WeightUpdate, ready),
        "/trainer/checkpoint": _handler(CheckpointReport, checkpoint),
    }


def _handler(kind: type[M], answer: Answer[M]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    decoder = msgspec.msgpack.Decoder(kind)

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            message = decoder.decode(body)
        except msgspec.MsgspecError as cause:
            return _refuse(400, f"{request.path}: the body is not a {getattr(kind, '__name__', 'map')}: {cause}")
        try:
            reply = await answer(message)
        except _Unexpected as late:
            return _refuse(409, str(late))
        except LedgerError as refusal:
            return _refuse(409, str(refusal))
        except AgentRLError as failure:
            return _refuse(500, str(failure))
        if reply is None:
            return web.Response(status=204)
        return web.Response(body=_encode(reply), content_type="application/msgpack")

    return handle


def _door(token: str) -> Any:
    """Only the run's own processes get in."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            return _refuse(401, "this route needs the run's token as Bearer")
        return await handler(request)

    return check


class _Unexpected(Exception):
    """A message that came too late; its sender need not send it again."""


def _expected(was: bool, otherwise: str) -> dict[str, Any]:
    if not was:
        raise _Unexpected(otherwise)
    return {}


def _refuse(status: int, why: str) -> web.Response:
    return web.Response(status=status, text=why)
