"""Rows that begin alike, as a forest, so that what they share is computed once.

The rows of a group share their prompt, the paths of an agent run share whole turns. A token's keys and values depend on the tokens before
it alone, so one stretch of them serves every row that runs through it, whichever of the rows trains its tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

LEAST_SHARED = 16
"""Tokens that must be shared from the start: below, apart is cheaper than attending elsewhere."""

TokenIds = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens start:stop of a row, the same in every row that runs through it."""

    row: int
    start: int
    stop: int
    parent: int | None
    """Index of the stretch that ends where this one starts; None at a row's start"""

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Forest:
    stretches: tuple[Stretch, ...]
    """Parents before their children"""
    ends: tuple[int, ...]
    """[rows] the stretch that ends each row"""


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Rows in alphabetical order, where rows that begin alike are neighbours."""

    order: list[int]
    lengths: list[int]
    shared: list[int]
    """[rows] tokens shared with the row before; 0 where that is not worth it"""

    def tokens(self, first: int, last: int) -> int:
        """Tokens to compute for rows first:last, shared ones once."""
        return sum(self.lengths[first:last]) - sum(self.shared[first + 1 : last])

    def fork(self, first: int, last: int) -> int:
        """Tokens that all of rows first:last share."""
        return min(self.shared[first + 1 : last], default=self.lengths[first])

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Rows first:last cut where they share no more than they all do."""
        fork = self.fork(first, last)
        return pairwise([first, *(i for i in range(first + 1, last) if self.shared[i] == fork), last])


def alphabet(rows: Sequence[TokenIds], least_shared: int = LEAST_SHARED) -> Alphabet:
    order = sorted(range(len(rows)), key=lambda i: rows[i].astype(">u4").tobytes())
    shared = [_common(rows[before], rows[after]) for before, after in pairwise(order)]
    return Alphabet(
        order=order,
        lengths=[len(rows[i]) for i in order],
        shared=[0, *(tokens if tokens >= least_shared else 0 for tokens in shared)][: len(order)],
    )


def grow(rows: Sequence[TokenIds], least_shared: int = LEAST_SHARED) -> Forest:
    """Every row is the way from a root to its end."""
    found = alphabet(rows, least_shared)
    stretches: list[Stretch] = []
    ends = dict.fromkeys(range(len(rows)), -1)
    pending: list[tuple[int, int, int, int | None]] = [(first, last, 0, None) for first, last in _trees(found)]
    while pending:
        first, last, start, parent = pending.pop()
        fork = found.fork(first, last)
        if fork > start:
            stretches.append(Stretch(found.order[first], start, fork, parent))
            parent = len(stretches) - 1
        if last - first > 1:
            pending += [(*part, fork, parent) for part in found.parts(first, last)]
        else:
            assert parent is not None, "a row has a token"
            ends[found.order[first]] = parent
    return Forest(tuple(stretches), tuple(ends.values()))


def micro_batches(rows: Sequence[TokenIds], budget: int) -> list[list[int]]:
    """Indices of the rows of each micro-batch, rows that begin alike together, of the rest the longest first.

    The budget counts each shared token once. Only a row that alone is over the budget goes over it.
    """
    found = alphabet(rows)
    batches: list[list[int]] = []
    room, end = 0, -1
    for tree in sorted(_trees(found), key=lambda tree: -max(found.lengths[slice(*tree)])):
        for first, last in _fitting(found, *tree, budget):
            tokens = found.tokens(first, last)
            more = tokens - found.shared[first] if first == end else tokens
            if not batches or more > room:
                batches.append([])
                room, more = budget, tokens
            batches[-1] += found.order[first:last]
            room, end = room - more, last
    return batches


def _trees(found: Alphabet) -> Iterator[tuple[int, int]]:
    """Ranges of rows that share something."""
    return pairwise([*(i for i, shared in enumerate(found.shared) if not shared), len(found.order)])


def _fitting(found: Alphabet, first: int, last: int, budget: int) -> Iterator[tuple[int, int]]:
    """Rows first:last in the largest parts that fit."""
    pending = [(first, last)]
    while pending:
        part = pending.pop()
        if part[1] - part[0] == 1 or found.tokens(*part) <= budget:
            yield part
        else:
            pending += reversed(list(found.parts(*part)))


def _common(before: TokenIds, after: TokenIds) -> int:
    """Length of the common prefix."""
    n = min(len(before), len(after))
    differ = before[:n] != after[:n]
    return int(differ.argmax()) if differ.any() else n
