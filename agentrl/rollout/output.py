"""What user code prints goes to stderr, in bounds: a worker's stdout carries messages, and a print in a loop must not fill a disk."""

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO


class BoundedText(io.TextIOBase):
    """Passes at most `per_s` characters a second on, plus a burst of `burst`; counts what it drops, and goes on at half a burst."""

    def __init__(self, below: TextIO, *, per_s: int = 16_384, burst: int = 262_144, clock: Callable[[], float] = time.monotonic) -> None:
        self._below = below
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._room: float = burst
        self._at = clock()
        self.dropped = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        now = self._clock()
        self._room = min(self._burst, self._room + (now - self._at) * self._per_s)
        self._at = now
        if self.dropped and self._room < self._burst / 2:
            self.dropped += len(text)
            return len(text)
        if self.dropped:
            self._below.write(f"\n[{self.dropped} characters of output dropped]\n")
        passed = text[: int(self._room)]
        self._room -= len(passed)
        self.dropped = len(text) - len(passed)
        self._below.write(passed)
        return len(text)

    def flush(self) -> None:
        self._below.flush()


@contextlib.contextmanager
def bounded_stdout() -> Iterator[BoundedText]:
    """`print` writes to stderr through BoundedText while inside."""
    text = BoundedText(sys.stderr)
    with contextlib.redirect_stdout(text):
        yield text
