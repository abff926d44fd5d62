"""Text to token ids and back, from a model folder, without importing a deep-learning framework.

Text that only *spells* a special token must stay plain text (a tool may print `<|im_end|>`). It is guarded before it is rendered: a
character that Unicode reserves for such private use goes inside it, so neither the template nor the tokenizer takes it for the real thing,
and `encode` takes that character out again and encodes the stretch by a twin tokenizer that knows no special tokens at all.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Fast

from agentrl.errors import ConfigError

GUARD = "\ufdd0"
"""Inside a guarded word. A noncharacter: never valid text in interchange."""
_LITERAL = "\ufdd0\ufdd1"
"""How a GUARD that was there before is written while guarding."""
_ANCHOR = "\ufdd2"
"""The twin's only special token: what stands after it is encoded as text after a special token is."""
_MARKUP = re.compile(r"<.+>|\[.+\]|.*<\|.*|.*\|>.*", re.DOTALL)
"""Added tokens that structure a conversation though they are not marked special; others (runs of spaces) are ordinary vocabulary."""


class Tokenizer:
    """A fast tokenizer with the means to keep special-token text plain."""

    def __init__(self, spec: str, *, name: str = "") -> None:
        """`spec` is the text of a tokenizer.json."""
        self.name = name
        self.fast = Fast.from_str(spec)
        self.digest = hashlib.sha256(spec.encode()).hexdigest()
        doc = json.loads(spec)
        added: list[dict[str, Any]] = doc.get("added_tokens") or []
        self.added: dict[str, int] = {token["content"]: token["id"] for token in added}
        """Every token that is matched as a whole in text: special ones, and others such as <tool_call>."""
        self.special = frozenset(token["content"] for token in added if token.get("special"))
        markup = self.special | {word for word in self.added if _MARKUP.fullmatch(word)}
        self._added_pattern = _any_of(self.added)
        self._markup_pattern = _any_of(markup)
        self._special_pattern = _any_of(self.special)
        self._twin = _twin(doc, markup) if markup else self.fast
        self._anchor_id = self._twin.token_to_id(_ANCHOR) if markup else None

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Raises ConfigError if the folder has no fast tokenizer."""
        path = folder / "tokenizer.json"
        try:
            spec = path.read_text(encoding="utf-8")
        except OSError as cause:
            raise ConfigError(
                f"{path}: {cause.strerror}. The gateway needs a fast tokenizer; make one with "
                "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
            ) from cause
        try:
            return cls(spec, name=str(folder))
        except Exception as cause:
            raise ConfigError(f"{path} is not a tokenizer that this version of `tokenizers` reads: {cause}") from cause

    @property
    def vocab_size(self) -> int:
        return self.fast.get_vocab_size(with_added_tokens=True)

    def guard(self, text: str, *, only_special: bool = False) -> str:
        """`text`, with every word that spells a special token (or, by default, one such as <tool_call>) marked as plain text."""
        pattern = self._special_pattern if only_special else self._markup_pattern
        if GUARD in text:
            text = text.replace(GUARD, _LITERAL)
        if pattern is None:
            return text
        return pattern.sub(lambda match: match[0][0] + GUARD + match[0][1:], text)

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text, without any tokens added at its ends."""
        if GUARD not in text:
            return self.fast.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        for piece, guarded in self._stretches(text):
            ids += self._plain(piece, first=not ids) if guarded else self.fast.encode(piece, add_special_tokens=False).ids
        return ids

    def _stretches(self, text: str) -> list[tuple[str, bool]]:
        """`text` cut so that a guarded stretch lies between true added tokens and everything else is left as long as it can be."""
        cuts = [0]
        for match in self._added_pattern.finditer(text) if self._added_pattern else ():
            cuts += [match.start(), match.end()]
        cuts.append(len(text))
        stretches: list[tuple[str, bool]] = []
        for start, end in itertools.pairwise(cuts):
            piece, guarded = text[start:end], GUARD in text[start:end]
            if stretches and not guarded and not stretches[-1][1]:
                piece = stretches.pop()[0] + piece
            if piece:
                stretches.append((piece, guarded))
        return stretches

    def _plain(self, piece: str, *, first: bool) -> list[int]:
        text = _unguarded(piece)
        if self._anchor_id is None or first:
            return self._twin.encode(text, add_special_tokens=False).ids
        return self._twin.encode(_ANCHOR + text, add_special_tokens=False).ids[1:]

    def decode(self, ids: Sequence[int]) -> str:
        """Text with special tokens spelled out; a torn character at the end is U+FFFD."""
        return self.fast.decode(ids, skip_special_tokens=False)


def _unguarded(text: str) -> str:
    return GUARD.join(part.replace(GUARD, "") for part in text.split(_LITERAL))


def _any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted((word for word in words if word), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _twin(doc: dict[str, Any], names: frozenset[str]) -> Fast:
    """The same model with the added tokens in `names` renamed, here and in the vocabulary, so that no text can reach their ids."""
    model = dict(doc["model"])
    vocab = model["vocab"]
    keep = model.get("unk_token")
    if isinstance(vocab, dict):
        model["vocab"] = {(_private(i) if word in names and word != keep else word): i for word, i in vocab.items()}
    else:
        model["vocab"] = [
            [_private(i) if entry[0] in names and i != model.get("unk_id") else entry[0], entry[1]] for i, entry in enumerate(vocab)
        ]
    added = [{**token, "content": _private(token["id"])} if token["content"] in names else token for token in doc["added_tokens"]]
    twin = Fast.from_str(json.dumps({**doc, "added_tokens": added, "model": model, "post_processor": None}))
    twin.add_special_tokens([AddedToken(_ANCHOR, special=True, normalized=False)])
    return twin


def _private(i: int) -> str:
    return f"\ufdd3{i}"
