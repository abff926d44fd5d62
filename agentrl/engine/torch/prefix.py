"""Finds the longest known prefix of a prompt among all sequences whose KV is at hand.

A radix tree over token ids: exact to the token, so a conversation that forks inside a turn still reuses all that it shares. A node knows
every holder whose sequence passes through it; the newest eligible one gives its KV.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

H = TypeVar("H")
Tokens = NDArray[np.int32]


@dataclass(slots=True)
class _Node(Generic[H]):
    edge: Tokens
    """Tokens from the parent to this node; empty at the root only."""
    children: dict[int, "_Node[H]"] = field(default_factory=dict)
    holders: dict[H, None] = field(default_factory=dict)
    """In order of insertion."""


class PrefixTree(Generic[H]):
    """Sequences by their tokens; holders are hashable by identity, and each is inserted once."""

    def __init__(self) -> None:
        self._root: _Node[H] = _Node(np.empty(0, np.int32))

    def insert(self, tokens: Tokens, holder: H) -> None:
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                child = node.children[int(tokens[at])] = _Node(tokens[at:].copy())
            else:
                same = _common(child.edge, tokens[at:])
                if same < len(child.edge):
                    child = node.children[int(tokens[at])] = _split(child, same)
            child.holders[holder] = None
            node, at = child, at + len(child.edge)

    def remove(self, tokens: Tokens, holder: H) -> None:
        """Undo an insert of the same arguments."""
        node, at = self._root, 0
        while at < len(tokens):
            key = int(tokens[at])
            child = node.children[key]
            del child.holders[holder]
            if not child.holders:
                del node.children[key]
                return
            node, at = child, at + len(child.edge)

    def match(self, tokens: Tokens, eligible: Callable[[H], bool]) -> tuple[H, int] | None:
        """The newest eligible holder of the longest prefix, and the prefix's length; None if no token is shared."""
        walk: list[tuple[_Node[H], int]] = []
        node, at = self._root, 0
        while at < len(tokens) and (child := node.children.get(int(tokens[at]))) is not None:
            same = _common(child.edge, tokens[at:])
            at += same
            walk.append((child, at))
            if same < len(child.edge):
                break
            node = child
        for node, length in reversed(walk):
            for holder in reversed(node.holders):
                if eligible(holder):
                    return holder, length
        return None


def _split(child: _Node[H], at: int) -> _Node[H]:
    """A new node in the middle of the child's edge, with the child below it."""
    upper = _Node(child.edge[:at], {int(child.edge[at]): child}, dict(child.holders))
    child.edge = child.edge[at:]
    return upper


def _common(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
