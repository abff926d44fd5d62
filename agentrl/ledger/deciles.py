"""Which tenth of the lengths a length falls into. Dropping and masking tend to favour short episodes, so every rate is shown by decile."""

from bisect import bisect_left, insort
from collections import deque


class Deciles:
    """Of the latest `window` lengths."""

    def __init__(self, window: int = 2000) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self._window = window

    def add(self, length: int) -> None:
        self._latest.append(length)
        insort(self._sorted, length)
        if len(self._latest) > self._window:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def of(self, length: int) -> int:
        """0 (shortest) … 9."""
        return min(9, 10 * bisect_left(self._sorted, length) // max(1, len(self._sorted)))
