"""Puzzles and their solutions, all worked out: a hand of numbers, and every target that it can reach.

Held-out hands are told apart by what they hold, not by its order: no puzzle of the evaluation has its numbers, in any order, in training
or in a demonstration. Hands come in an order that strides over all of them, so that any number of first tasks covers the range evenly and
nothing is kept in memory however many there are.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from random import Random

import msgspec

from agentrl_countdown.arithmetic import Expression, parse
from agentrl_countdown.config import CountdownConfig

HELD_OUT = 5
"""One hand in so many is kept for evaluation."""


class Puzzle(msgspec.Struct, frozen=True):
    """`numbers` as shown; `target` is a whole number from 1."""

    numbers: tuple[int, ...]
    target: int


class Puzzles:
    """All puzzles of one difficulty."""

    def __init__(self, config: CountdownConfig) -> None:
        self.config = config
        self.expressions = lru_cache(maxsize=8192)(self._expressions)

    def stream(self, *, held_out: bool) -> Iterator[Puzzle]:
        """Each one once. A hand's targets are spread over the stream."""
        hands = (self.config.highest - self.config.lowest + 1) ** self.config.numbers
        for turn in itertools.count():
            more = False
            for index in _strided(hands):
                numbers = self._hand(index)
                if _is_held_out(numbers) != held_out:
                    continue
                targets = self._targets(numbers)
                if turn < len(targets):
                    more = True
                    yield Puzzle(numbers=numbers, target=targets[turn])
            if not more:
                return

    def hits(self, puzzle: Puzzle) -> list[str]:
        """The solutions without parentheses."""
        return [text for text, value in self.expressions(puzzle.numbers) if value == puzzle.target]

    def uses(self, expression: Expression, numbers: tuple[int, ...]) -> bool:
        """Each given number exactly once, in the given order unless any will do."""
        if self.config.any_order:
            return sorted(expression.numbers) == sorted(numbers)
        return expression.numbers == numbers

    def _expressions(self, numbers: tuple[int, ...]) -> tuple[tuple[str, Fraction], ...]:
        """Text and value of every expression without parentheses."""
        orders = sorted(set(itertools.permutations(numbers))) if self.config.any_order else [numbers]
        found = []
        for order in orders:
            for operators in itertools.product(self.config.operators, repeat=len(numbers) - 1):
                text = str(order[0]) + "".join(f"{operator}{number}" for operator, number in zip(operators, order[1:], strict=True))
                try:
                    found.append((text, parse(text).value))
                except ValueError:
                    continue  # a division by zero
        return tuple(found)

    def _hand(self, index: int) -> tuple[int, ...]:
        size = self.config.highest - self.config.lowest + 1
        return tuple(self.config.lowest + index // size**place % size for place in range(self.config.numbers))

    def _targets(self, numbers: tuple[int, ...]) -> list[int]:
        values = {value for _, value in self.expressions(numbers)}
        targets = sorted(int(value) for value in values if value.denominator == 1 and 1 <= value <= self.config.largest_target)
        Random(str(numbers)).shuffle(targets)
        return targets


def _strided(count: int) -> Iterator[int]:
    """Every index below `count` once, by steps of about the golden ratio."""
    stride = max(int(count * 0.618), 1)
    while math.gcd(stride, count) > 1:
        stride += 1
    return (index * stride % count for index in range(count))


def _is_held_out(numbers: tuple[int, ...]) -> bool:
    digest = hashlib.blake2b(repr(sorted(numbers)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0
