"""A worker's heartbeat, from a thread of its own: it speaks also while user code holds the event loop, and says whose code that is."""

import http.client
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self
from urllib.parse import urlsplit

import msgspec

from agentrl.env import BoundAgent, Episode
from agentrl.rollout.link import Link
from agentrl.rollout.wire import Heartbeat, HeartbeatReply

STACK_CHARACTERS = 4000
log = logging.getLogger(__name__)


class Heart:
    """Beats until it is left. `beat` and `cancel` are called in the heart's thread."""

    def __init__(self, link: Link, *, every_s: float, beat: Callable[[], Heartbeat], cancel: Callable[[tuple[str, ...]], None]) -> None:
        self._link = link
        self._every_s = every_s
        self._beat = beat
        self._cancel = cancel
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()

    def _run(self) -> None:
        while True:
            try:
                self._cancel(self._send(self._beat()).cancel)
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as lost:
                log.warning("heartbeat: no answer from the controller at %s (%s: %s)", self._link.url, type(lost).__name__, lost)
                self._connection = None
            if self._stop.wait(self._every_s):
                return

    def _send(self, beat: Heartbeat) -> HeartbeatReply:
        if self._connection is None:
            parts = urlsplit(self._link.url)
            kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(parts.netloc, timeout=10)
        path = urlsplit(self._link.url).path + "/worker/heartbeat"
        self._connection.request("POST", path, msgspec.msgpack.encode(beat), self._link.headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= 300:
            raise http.client.HTTPException(f"{response.status} {content[:200]!r}")
        return msgspec.msgpack.decode(content, type=HeartbeatReply)


class LoopWatch:
    """When the event loop last turned, and what its thread does now."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._turned_at = time.monotonic()

    def turned(self) -> None:
        self._turned_at = time.monotonic()

    @property
    def lag_s(self) -> float:
        return time.monotonic() - self._turned_at

    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)


def stack_of(frame: FrameType | None) -> str:
    return "".join(traceback.format_stack(frame))[-STACK_CHARACTERS:] if frame else ""


def episode_of(frame: FrameType | None) -> str:
    """The id of the episode whose code is on the stack, innermost first: every hook, tool and loop of ours has it among its variables."""
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, BoundAgent):
                return value.parent.root.id
            if isinstance(value, Episode):
                return value.root.id
        frame = frame.f_back
    return ""
