"""What an engine is: token ids in, token ids out, and honest about which weights made each of them.

Everything above tokens (chat, tools, dialects) belongs to the gateway; when to update belongs to the coordinator. An engine only promises
that what it returns was sampled from the distribution whose logprobs it reports, under the versions that its spans name.
"""

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from agentrl.episode import FinishReason, Sampling, Span
from agentrl.weights.update import WeightUpdate

PauseMode = Literal["keep", "abort", "drain"]
"""keep: calls in flight stop and go on over their KV cache. abort: they end now with finish_reason "abort" and what they have; retained KV
is not reused under the next version. drain: they finish, new ones wait; retained KV is not reused either."""


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stretch of one call's tokens. The last chunk has a finish_reason, and it alone has spans (over the whole completion)."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """nats, aligned with token_ids"""
    support: tuple[tuple[int, ...], ...] | None = None
    """Per token, if asked for: the token ids that survived truncation."""
    finish_reason: FinishReason | None = None
    stop_match: str | None = None
    """The stop string that ended the call; None for an end-of-turn token."""
    spans: tuple[Span, ...] = ()
    kv_oldest_version: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused; on the last chunk."""


class Capabilities(msgspec.Struct, frozen=True):
    """What this engine can do; combinations that it cannot serve are refused at start-up."""

    model: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    support: bool = False
    keep: bool = False
    """pause("keep") really keeps KV"""
    routing: bool = False
    lora: bool = False
    grammar: bool = False


class EngineStatus(msgspec.Struct, frozen=True):
    """A reading of the engine's state; also how a pause of unknown outcome is read back."""

    policy_version: int
    paused: bool
    prepared: int | None = None
    """Version that is staged and not yet loaded."""
    quarantined: bool = False
    running: int = 0
    waiting: int = 0
    busy_s: float = 0.0
    """Seconds spent in forward passes since the start, the one that is going on included."""
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    """Prompt tokens computed (not reused) since the start."""


class Engine(Protocol):
    """Samples tokens. All calls are idempotent but generate; every one of them may raise EngineError."""

    def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, session: str, deadline_s: float, stream: bool = True
    ) -> AsyncIterator[Chunk]:
        """Sample a completion. `stream=False` gives one chunk at the end. Closing the iterator cancels the call.

        `session` is a hint for prefix reuse. Raises ContextOverflow if the prompt leaves no room, EngineError after deadline_s seconds.
        """
        ...

    async def pause(self, mode: PauseMode) -> None: ...

    async def prepare(self, update: WeightUpdate) -> None:
        """Transfer, check and stage, while generation goes on. Raises WeightError; then nothing changed."""
        ...

    async def load(self, update: WeightUpdate) -> None:
        """Commit what was prepared. A failed load leaves the engine paused and quarantined until a full load."""
        ...

    async def resume(self) -> None: ...

    async def sleep(self) -> None:
        """Give the device's memory back."""
        ...

    async def wake(self) -> None: ...

    async def status(self) -> EngineStatus: ...

    def capabilities(self) -> Capabilities: ...
