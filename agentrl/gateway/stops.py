"""Which stop string ends a text: the one whose end comes first, since that is the one that sampling token by token meets."""

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """Characters [start, end) of a text."""

    end: int
    start: int


def first_stop(text: str, stops: Sequence[str]) -> StopMatch | None:
    found = [StopMatch(end=at + len(stop), start=at) for stop in stops if stop and (at := text.find(stop)) >= 0]
    return min(found, default=None)
