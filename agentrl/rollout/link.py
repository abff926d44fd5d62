"""A worker's line to the controller: msgpack over HTTP, patient, because an episode's record must not be lost to a slow moment."""

import logging
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import anyio
import msgspec

from agentrl.errors import AgentRLError

R = TypeVar("R")
ATTEMPT_S = 60.0
"""Longer than any long poll."""
log = logging.getLogger(__name__)


class Refused(AgentRLError):
    """The controller understood the message and wants no more of it (an expired lease)."""


class Link:
    """`async with Link(url, token=…) as link: reply = await link.post("/worker/lease", request, LeaseReply)`."""

    def __init__(self, url: str, *, token: str) -> None:
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"}

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10), connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            await self._http.close()

    async def post(self, path: str, message: Any, answer: type[R]) -> R:
        """Tried again until the controller answers. Raises Refused for 4xx."""
        body = msgspec.msgpack.encode(message)
        wait_s = 0.1
        while True:
            try:
                with anyio.fail_after(ATTEMPT_S):
                    status, content = await self._attempt(path, body)
                if status < 300:
                    return msgspec.msgpack.decode(content, type=answer)
                if status < 500:
                    raise Refused(f"{path}: the controller answered {status}: {content[:500].decode(errors='replace')}")
                trouble = f"it answered {status}"
            except (aiohttp.ClientError, TimeoutError) as lost:
                trouble = f"{type(lost).__name__}: {lost}"
            log.warning("%s: no answer from the controller at %s (%s); trying again in %.1f s", path, self.url, trouble, wait_s)
            await anyio.sleep(wait_s)
            wait_s = min(wait_s * 2, 5.0)

    async def _attempt(self, path: str, body: bytes) -> tuple[int, bytes]:
        async with self._http.post(self.url + path, data=body, headers=self.headers) as response:
            return response.status, await response.read()
