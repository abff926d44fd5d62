"""The child's side of supervision: spec on stdin, one ready line on stdout, and death when stdin closes.

A specification may hold secrets, so it never stands on a command line or in the environment. The parent keeps the pipe open for as long as
it lives: the end of stdin is how a child learns of its parent's death, whatever killed it, and no child outlives its run.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
GRACE_S = 5.0
"""Between the parent's death and the forced end of this process and all that it started."""


def read_spec(kind: type[T], *, scratch: Callable[[T], str] | None = None) -> T:
    """Block for the specification, then watch stdin for its end in a thread.

    `scratch` names a folder that the parent removes at the end of the run; when the parent is dead, this process removes it instead.
    """
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


def say_ready(report: msgspec.Struct) -> None:
    """Tell the parent where this process can be reached. Everything else that a child says goes to stderr, which is its log."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()
