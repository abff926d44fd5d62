"""The token trie of one agent run: every path through its turns, and who owns each sampled token.

Several paths may share a sampled token (resamples, sub-agents, compaction). It must be trained at most once, so it is owned by the first
path, depth first in the order the turns were made; the other paths attend to it and leave it alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.episode.turn import Turn


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, stop) of one turn's own tokens (prompt, then completion), as one path uses them."""

    turn: Turn
    start: int
    stop: int
    owned: bool
    """This path owns the sampled tokens of the segment."""


@dataclass(frozen=True, slots=True)
class Path:
    """A root-to-leaf walk. Its segments, joined, are a sequence that the engine saw."""

    segments: tuple[Segment, ...]

    @property
    def leaf(self) -> Turn:
        return self.segments[-1].turn

    def __len__(self) -> int:
        return sum(segment.stop - segment.start for segment in self.segments)

    def token_ids(self) -> NDArray[np.int32]:
        """[len(self)]"""
        return np.concatenate([own_tokens(s.turn)[s.start : s.stop] for s in self.segments])


def own_tokens(turn: Turn) -> NDArray[np.int32]:
    """[turn.own_len] prompt_ids then completion_ids."""
    return np.concatenate([turn.prompt_ids, turn.completion_ids])


class TokenTrie:
    """Turns of one agent run, by id, append-only. A turn's parent is added before it."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns: dict[str, Turn] = {}
        self._start: dict[str, int] = {}
        self._children: dict[str | None, list[Turn]] = {None: []}
        for turn in turns:
            self.add(turn)

    def add(self, turn: Turn) -> None:
        """Append a turn. Raises ValueError if its id is taken or its parent point does not exist."""
        if turn.id in self._turns:
            raise ValueError(f"turn {turn.id} is in the trie already")
        if turn.parent is None:
            start, holder = 0, None
        else:
            start = turn.parent.prefix_len
            if turn.parent.turn not in self._turns or not 0 <= start <= self.full_len(turn.parent.turn):
                raise ValueError(f"turn {turn.id}: its parent point {turn.parent} is not in the trie")
            holder = self._holder(turn.parent.turn, start)
        self._turns[turn.id] = turn
        self._start[turn.id] = start
        self._children[turn.id] = []
        self._children[holder].append(turn)

    def _holder(self, turn_id: str, prefix_len: int) -> str | None:
        """The turn on the path of `turn_id` whose own tokens contain token number prefix_len (counted from 1); None at the root."""
        at: str | None = turn_id
        while at is not None and self._start[at] >= prefix_len:
            parent = self._turns[at].parent
            at = parent.turn if parent is not None else None
        return at if prefix_len > 0 else None

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    def __getitem__(self, turn_id: str) -> Turn:
        return self._turns[turn_id]

    def __contains__(self, turn_id: object) -> bool:
        return turn_id in self._turns

    def full_len(self, turn_id: str) -> int:
        """Tokens from the root to the end of this turn."""
        return self._start[turn_id] + self._turns[turn_id].own_len

    def tokens(self, turn_id: str, prefix_len: int | None = None) -> NDArray[np.int32]:
        """[prefix_len or full_len] the first tokens of the turn's full sequence."""
        pieces: list[NDArray[np.int32]] = []
        at: str | None = turn_id
        stop = self.full_len(turn_id) if prefix_len is None else prefix_len
        while at is not None:
            turn, start = self._turns[at], self._start[at]
            if stop > start:
                pieces.append(own_tokens(turn)[: stop - start])
                stop = start
            at = turn.parent.turn if turn.parent is not None else None
        return np.concatenate(pieces[::-1]) if pieces else np.empty(0, np.int32)

    def paths(self) -> list[Path]:
        """Every path, depth first, children in the order they were added; each sampled token is owned by exactly one of them."""
        paths: list[Path] = []
        owned_to: dict[str, int] = {}
        # An explicit stack (a session of a thousand turns is deeper than Python's recursion limit) of turns and the walk that led there,
        # as linked cells, so that a chain of n turns costs n cells and not n²/2.
        stack: list[tuple[Turn, _Cell | None]] = [(turn, None) for turn in reversed(self._children[None])]
        while stack:
            turn, walked = stack.pop()
            children = self._children[turn.id]
            end = self.full_len(turn.id)
            if not any(self._start[child.id] == end for child in children):
                paths.append(_path(_Cell(walked, turn, turn.own_len), owned_to))
            for child in reversed(children):
                stack.append((child, _Cell(walked, turn, self._start[child.id] - self._start[turn.id])))
        return paths


class _Cell(NamedTuple):
    before: "_Cell | None"
    turn: Turn
    stop: int


def _path(cell: _Cell | None, owned_to: dict[str, int]) -> Path:
    walk: list[_Cell] = []
    while cell is not None:
        walk.append(cell)
        cell = cell.before
    segments: list[Segment] = []
    for _, turn, stop in reversed(walk):
        owned = owned_to.get(turn.id, 0)
        # What earlier paths own of this turn is a prefix of its tokens.
        if 0 < owned < stop:
            segments += [Segment(turn, 0, owned, False), Segment(turn, owned, stop, True)]
        elif stop > 0:
            segments.append(Segment(turn, 0, stop, owned == 0))
        owned_to[turn.id] = max(owned, stop)
    return Path(tuple(segments))
