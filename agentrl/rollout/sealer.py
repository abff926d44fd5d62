"""Sealing over the gateway's control routes."""

from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from agentrl.episode import EpisodeRecord, Sealed
from agentrl.errors import GatewayError, boundary
from agentrl.gateway.control import Discard, GatewayStatus

R = TypeVar("R")


class GatewaySealer:
    """`async with GatewaySealer(url, token=…) as sealer`. Raises GatewayError for whatever goes wrong; the caller sets deadlines."""

    def __init__(self, url: str, *, token: str) -> None:
        """`url`: the gateway's base, without a trailing slash."""
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"}

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.close()

    async def seal(self, record: EpisodeRecord) -> Sealed:
        return await self._post("/control/seal", record, Sealed)

    async def discard(self, episode: str) -> None:
        await self._post("/control/discard", Discard(episode), dict[str, Any])

    async def status(self) -> GatewayStatus:
        """What the gateway counted since its start."""
        return await self._ask("GET", "/control/status", None, GatewayStatus)

    async def _post(self, path: str, message: msgspec.Struct, answer: type[R]) -> R:
        return await self._ask("POST", path, msgspec.msgpack.encode(message), answer)

    async def _ask(self, method: str, path: str, body: bytes | None, answer: type[R]) -> R:
        try:
            async with self._http.request(method, self._url + path, data=body) as reply:
                body = await reply.read()
        except (aiohttp.ClientError, OSError) as cause:
            raise GatewayError(f"the gateway at {self._url} did not answer {path}: {cause or type(cause).__name__}") from cause
        if reply.status != 200:
            raise GatewayError(f"the gateway refused {path} with {reply.status}: {body[:500].decode(errors='replace')}")
        with boundary(GatewayError, f"read the gateway's answer to {path}"):
            return msgspec.msgpack.decode(body, type=answer)
