"""Arithmetic from a model's own words, without `eval`: whatever the text is, it costs microseconds and runs nothing.

Values are exact fractions, so `1/3*3` is 1 and a target is either met or not. There is no unary minus: every number in an expression is
a use of one of the given numbers, and its sign would be a second way to write the same use.
"""

import re
from fractions import Fraction

import msgspec

LONGEST = 200
"""Characters. Bounds the parser's depth and the digits of a product."""

_WORD = re.compile(r"\s*([0-9]+|[-+*/()])")


class Expression(msgspec.Struct, frozen=True):
    """A parsed expression: what it comes to, and which numbers it used, left to right."""

    value: Fraction
    numbers: tuple[int, ...]


def parse(text: str) -> Expression:
    """`+ - * /`, parentheses, whole numbers. Raises ValueError in words for the writer, which quote nothing.

    >>> parse("(3+4)*5").value
    Fraction(35, 1)
    """
    if len(text) > LONGEST:
        raise ValueError("the expression is too long")
    words = _words(text)
    reader = _Reader(words)
    value = reader.sum()
    if reader.at < len(words):
        raise ValueError("an operator is missing")
    return Expression(value=value, numbers=tuple(int(word) for word in words if word.isdigit()))


def _words(text: str) -> list[str]:
    words: list[str] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _WORD.match(text, at)
        if match is None:
            raise ValueError("only whole numbers, operators and parentheses are arithmetic")
        words.append(match[1])
        at = match.end()
    return words


class _Reader:
    """Recursive descent over the words: a sum of products of factors."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.at = 0

    def sum(self) -> Fraction:
        value = self._product()
        while self._next() in ("+", "-"):
            value = value + self._product() if self._take() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self._next() in ("*", "/"):
            operator, factor = self._take(), self._factor()
            if operator == "/" and factor == 0:
                raise ValueError("division by zero")
            value = value * factor if operator == "*" else value / factor
        return value

    def _factor(self) -> Fraction:
        word = self._take()
        if word.isdigit():
            return Fraction(int(word))
        if word != "(":
            raise ValueError("a number is missing")
        value = self.sum()
        if self._take() != ")":
            raise ValueError("a parenthesis is not closed")
        return value

    def _next(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _take(self) -> str:
        word = self._next()
        self.at += 1
        return word
