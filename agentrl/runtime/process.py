"""The parent's side of supervision: start a process, wait until it says that it is ready, and end it with all its descendants.

Each child is the leader of a session of its own, so that one signal reaches all that it started, and a Ctrl-C in the terminal reaches the
controller alone, which then ends the others in order.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from anyio.abc import Process

from agentrl.errors import ProcessError, boundary

T = TypeVar("T", bound=msgspec.Struct)
TAIL_LINES = 15
LINE_CHARS = 300
"""User code may have printed lines of any length."""
STOP_S = 8.0
"""Between asking a process to end and killing it."""


class Child:
    """A running process with its log."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit status."""
        return await self._process.wait()

    async def watch(self) -> None:
        """Return never; raise ProcessError when the process ends."""
        status = await self.wait()
        raise ProcessError(failure(self.name, ended(status), self.log))

    async def lines(self) -> AsyncIterator[bytes]:
        """What the child writes to stdout, line by line, until its end."""
        stdout = self._process.stdout
        assert stdout is not None
        pending = b""
        async for chunk in stdout:
            *whole, pending = (pending + chunk).split(b"\n")
            for line in whole:
                yield line

    async def ready(self, kind: type[T], *, within_s: float) -> T:
        """The child's ready line. Raises ProcessError with the log's tail if it ends or stays silent."""
        try:
            with anyio.fail_after(within_s):
                async for line in self.lines():
                    return msgspec.json.decode(line, type=kind)
                status = await self.wait()
        except TimeoutError as cause:
            raise ProcessError(failure(self.name, f"was not ready after {within_s:.0f} s", self.log)) from cause
        raise ProcessError(failure(self.name, f"{ended(status)} before it was ready", self.log))

    async def stop(self) -> None:
        """Ask, wait, then kill; also what it started."""
        with anyio.CancelScope(shield=True):
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(STOP_S):
                await self._process.wait()
            self._signal(signal.SIGKILL)
            await self._process.wait()
            await self._process.aclose()

    def _signal(self, number: int) -> None:
        # The group outlives its leader when a descendant is left, so it is signalled also after the leader's end.
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


@asynccontextmanager
async def child(
    name: str, module: str, spec: msgspec.Struct, *, log: Path, extra_env: dict[str, str] | None = None
) -> AsyncIterator[Child]:
    """Run `python -m module` with `spec` on its stdin; ended, with its descendants, when the context closes."""
    with boundary(ProcessError, f"start the {name} process, which logs to {log}"):
        # A copied run folder may lack empty folders.
        log.parent.mkdir(parents=True, exist_ok=True)
        sink = log.open("ab")
    with sink:
        process = await anyio.open_process(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
            env={**os.environ, **(extra_env or {})},
        )
    started = Child(name, process, log)
    try:
        assert process.stdin is not None
        try:
            await process.stdin.send(msgspec.json.encode(spec) + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as cause:
            raise ProcessError(failure(name, "ended before it read its specification", log)) from cause
        yield started
    finally:
        await started.stop()


def ended(status: int) -> str:
    """What an exit status means, in words."""
    if status >= 0:
        return f"ended with status {status}"
    by = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    hint = "; was the machine out of memory?" if by == "SIGKILL" else ""
    return f"was killed by {by}{hint}"


def failure(name: str, what: str, log: Path) -> str:
    """The message of a process that failed: the cause, the log's last lines, the path."""
    return f"the {name} process {what}\n{indent(tail(log))}\n  full log: {log}"


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, each cut to LINE_CHARS, read from its last 64 KiB."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "(no log)"
    return "\n".join(line[:LINE_CHARS] for line in text.splitlines()[-lines:]) or "(the log is empty)"


def indent(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
