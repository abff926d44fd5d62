"""The child's side of supervision: spec on stdin, a ready line on stdout, and death when stdin closes.

A specification may hold secrets, so it never stands on a command line or in the environment. The parent keeps the pipe open for as long as
it lives: the end of stdin is how a child learns of its parent's death, whatever killed it, and no child outlives its run. Nor can user code
talk to the parent: what it, or a program that it starts, prints to stdout goes to the log.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import BinaryIO, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
GRACE_S = 5.0
"""Between the parent's death and the forced end of this process and all that it started."""


def read_spec(kind: type[T], *, scratch: Callable[[T], str] | None = None) -> T:
    """Block for the specification, then watch stdin for its end in a thread.

    `scratch` names a folder that the parent removes at the end of the run; when the parent is dead, this process removes it instead.
    """
    _to_parent()
    line = sys.stdin.buffer.readline()
    spec = msgspec.json.decode(line, type=kind)
    orphan = scratch(spec) if scratch else None
    threading.Thread(target=_end_with_stdin, args=(orphan,), name="parent-watch", daemon=True).start()
    return spec


def _end_with_stdin(scratch: str | None) -> None:
    # os.read, not sys.stdin: a thread that holds the buffered reader's lock aborts the interpreter's own shutdown.
    while os.read(0, 4096):
        pass
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    _signal_all(signal.SIGTERM)
    time.sleep(GRACE_S)
    _signal_all(signal.SIGKILL)


def _signal_all(number: int) -> None:
    """This process and what it started; only itself when it leads no group of its own (started by hand)."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, number)
    else:
        os.kill(os.getpid(), number)


@cache
def _to_parent() -> BinaryIO:
    """The pipe that stdout was. From the first call on stdout is stderr, which is the log: the parent reads no more than it is told, and a
    full pipe would hold whoever prints."""
    pipe = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return pipe


def tell(message: msgspec.Struct) -> None:
    """A line to the parent: where this process can be reached, or how far it is."""
    _to_parent().write(msgspec.json.encode(message) + b"\n")
