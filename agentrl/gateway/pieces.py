"""Sampled ids as a stream of text: decoded piece by piece, marking words apart, cut at the first stop string."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from agentrl.gateway.stops import first_stop
from agentrl.gateway.tokenizer import Tokenizer


class Piece(NamedTuple):
    text: str
    mark: bool
    """The text is a marking word that came as one token."""


def text_pieces(text: str) -> Iterator[Piece]:
    if text:
        yield Piece(text, False)


def overlap(text: str, word: str) -> int:
    """Length of the longest end of `text` that begins `word`."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if word.startswith(text[-n:])), 0)


class Detokenizer:
    """Ids to text piece by piece; a character torn between tokens waits for its rest."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._said = 0
        """Ids whose text was given out; those before it are kept for context until text follows them."""

    def feed(self, ids: Sequence[int], *, final: bool = False) -> str:
        self._ids += ids
        if len(self._ids) == self._said:
            return ""
        known = self._tokenizer.decode(self._ids[: self._said]) if self._said else ""
        text = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd") and not final:
            return ""
        del self._ids[: self._said]
        self._said = len(self._ids)
        return text[len(known) :]

    def flush(self) -> str:
        text = self.feed((), final=True)
        self._ids, self._said = [], 0
        return text


class StopScan:
    """Lets items through up to the first stop string, holding back what could be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._pending: list[Piece] = []
        self.matched = False

    def feed(self, items: Iterable[Piece]) -> Iterator[Piece]:
        if not self._stops:
            yield from items
            return
        for item in items:
            if self.matched:
                return
            self._pending.append(item)
            text = "".join(held.text for held in self._pending)
            stop = first_stop(text, self._stops)
            self.matched = stop is not None
            yield from self._release(len(text) - max(overlap(text, stop) for stop in self._stops) if stop is None else stop.start)
            if self.matched:
                self._pending = []

    def flush(self) -> list[Piece]:
        pending, self._pending = self._pending, []
        return pending

    def _release(self, count: int) -> Iterator[Piece]:
        while self._pending and count > 0:
            item = self._pending[0]
            if len(item.text) <= count:
                self._pending.pop(0)
                count -= len(item.text)
                yield item
                continue
            if item.mark and not self.matched:
                return
            self._pending[0] = Piece(item.text[count:], False)
            count = 0
            yield Piece(item.text[: len(item.text) - len(self._pending[0].text)], False)
