"""Stop strings are about text, sampling is about tokens, and a string may begin and end inside tokens.

After each token only the tail of the completion is decoded: a match that ends in the newest token cannot reach further back than one token
for each of its bytes. Sampled ids are never cut; the engine only stops, and says which string it met.
"""

from typing import Any


class StopStrings:
    """The stop strings of one call."""

    def __init__(self, tokenizer: Any, strings: tuple[str, ...]) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer`."""
        self._tokenizer = tokenizer
        self._strings = strings
        # One more token on the left, because some decoders drop a space before the first one.
        self._tail = max(len(string.encode()) for string in strings) + 1

    def match(self, tokens: list[int], start: int) -> str | None:
        """The earliest string in the text of tokens[start:], given that there was none before the last token."""
        text = self._tokenizer.decode(tokens[max(start, len(tokens) - self._tail) :], skip_special_tokens=False)
        found = [(at, string) for string in self._strings if (at := text.find(string)) >= 0]
        return min(found)[1] if found else None
