"""A call is one completion being sampled, from the moment it is asked for to its last token.

It belongs to the engine's thread; the asyncio side sees only the chunks that it is given. Its sequence (prompt and completion in one list)
and `kv_len` say all about its state: tokens from kv_len on still need a forward, and when none is left the next token is drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

from agentrl.engine.base import Chunk
from agentrl.engine.torch.retained import Retained
from agentrl.engine.torch.stop import StopStrings
from agentrl.episode import FinishReason, Sampling, Span


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One completion."""

    tokens: list[int]
    """Prompt, then completion."""
    prompt_len: int
    sampling: Sampling
    session: str
    stream: bool
    completion_limit: int
    """max_tokens, clamped to the context."""
    stop_ids: frozenset[int]
    stop_strings: StopStrings | None
    uniform: Callable[[], float]
    """Draws from [0, 1): the call's own generator if it has a seed."""
    post: Callable[[Chunk | Exception], None]
    """Hands an outcome to the caller; may be used in the engine's thread."""
    logprobs: list[float] = field(default_factory=list)
    support: list[tuple[int, ...]] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(policy_version, first completion token sampled under it)"""
    stop_match: str | None = None
    sent: int = 0
    """Completion tokens delivered."""
    arena: int = -1
    """Index of the arena that holds the KV, and the row in it; -1: none."""
    row: int = -1
    kv_len: int = 0
    """Tokens whose keys and values are in the row."""
    kv_version: int = 0
    """Version under which position 0 was computed: the oldest in the row, because a row is written from left to right."""
    cached: int = 0
    """Prompt tokens whose KV was reused."""
    source: Retained | None = None
    """The retained KV that this call began with."""
    leader: Optional["Call"] = None
    """The call whose prefill this one waits for, until `shared` tokens of it are done."""
    shared: int = 0

    def accept(self, token: int, logprob: float, version: int, support: tuple[int, ...] | None) -> FinishReason | None:
        """Append a sampled token; returns why the call ends with it, if it does."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, len(self.logprobs)))
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if support is not None:
            self.support.append(support)
        if token in self.stop_ids:
            return "stop"
        if self.stop_strings is not None and (match := self.stop_strings.match(self.tokens, self.prompt_len)) is not None:
            self.stop_match = match
            return "stop"
        return "length" if len(self.logprobs) >= self.completion_limit else None

    def chunk(self, finish: FinishReason | None = None) -> Chunk:
        """What has not been sent yet; with `finish`, the last chunk."""
        start, self.sent = self.sent, len(self.logprobs)
        token_ids, logprobs = tuple(self.tokens[self.prompt_len + start :]), tuple(self.logprobs[start:])
        support = tuple(self.support[start:]) if self.support else None
        if finish is None:
            return Chunk(token_ids=token_ids, logprobs=logprobs, support=support)
        return Chunk(
            token_ids=token_ids,
            logprobs=logprobs,
            support=support,
            finish_reason=finish,
            stop_match=self.stop_match,
            spans=self.spans(),
            kv_oldest_version=self.kv_version,
            cached_tokens=self.cached,
        )

    def spans(self) -> tuple[Span, ...]:
        """One span for each policy_version, over the whole completion."""
        ends = [start for _, start in self.versions[1:]] + [len(self.logprobs)]
        return tuple(Span(version, start, end) for (version, start), end in zip(self.versions, ends, strict=True))
