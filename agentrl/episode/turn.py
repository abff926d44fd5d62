"""A turn is one model call, and it stores only the tokens that it adds.

A long conversation sends its whole history with each call. Storing prompts whole would be quadratic in turns, so a turn names a parent
point (a turn, and how many tokens of that turn's full sequence it shares) and holds what comes after. The parent point may lie anywhere,
also inside a turn: history that was cut or edited in mid-turn forks there and stores only what is new.
"""

from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentrl.episode.chat import ChatMessage, ToolSpec

FinishReason = Literal["stop", "length", "abort"]
"""What ended sampling: an end-of-turn token or stop string, the token limit, or an abort (which is never a stop)."""

TurnKind = Literal["main", "sub", "side"]


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are drawn; also the record of how they were."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy; greedy turns are not trainable (their logprob under the policy is not defined)."""
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    support: bool = False
    """Record which token ids survived truncation, for each sampled token."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """completion_ids[start:end] were sampled under one policy_version."""

    policy_version: int
    start: int
    end: int


class Parent(msgspec.Struct, frozen=True, array_like=True):
    """A point in the token trie."""

    turn: str
    prefix_len: int
    """Tokens of that turn's full sequence (from the root: prefix + prompt + completion) that come before this turn's own."""


@dataclass(frozen=True, slots=True)
class Support:
    """Token ids that survived top_p, top_k and min_p, in CSR form: token i was drawn from ids[indptr[i]:indptr[i+1]]."""

    indptr: NDArray[np.int64]
    """[completion + 1]"""
    ids: NDArray[np.int32]
    """[indptr[-1]]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call. Arrays are read-only once the turn is journalled."""

    id: str
    agent_run: str
    parent: Parent | None
    """None: the turn starts at the root of the trie."""
    prompt_ids: NDArray[np.int32]
    """[prompt] tokens after the parent point that were not sampled by this turn."""
    completion_ids: NDArray[np.int32]
    """[completion] sampled tokens, end-of-turn token included, exactly as the engine returned them."""
    mask: NDArray[np.bool_]
    """[completion] True: may be trained. False: past a stop match, forced, or without a known version."""
    sampler_logprobs: NDArray[np.float32]
    """[completion] nats, of the distribution really sampled from."""
    spans: tuple[Span, ...]
    """Cover [0, completion) without gaps, except for tokens without a known version."""
    kv_oldest_version: int
    """The oldest policy_version whose key/value cache entries the completion attended to."""
    sampling: Sampling
    finish_reason: FinishReason
    policy: str = "policy"
    kind: TurnKind = "main"
    template: str = ""
    """Hash of tokenizer and chat template that made the prompt."""
    placement: str = "exact"
    """How the prompt met history: "root", "exact" (history came back as issued), "spliced" (equal after normalising), "forked:<reason>"."""
    messages: tuple[ChatMessage, ...] = ()
    """Prompt messages after those of the parent turn."""
    tools: tuple[ToolSpec, ...] = ()
    """Given on turns that start a path; later turns share them."""
    reply: ChatMessage | None = None
    """The completion, parsed."""
    support: Support | None = None
    routing: NDArray[np.uint8] | None = None
    """[prompt + completion, layers, top_k] experts chosen; -1 cast to 255 marks a missing row."""
    started_at: float = 0.0
    """Seconds since the epoch, when the call reached the gateway."""
    ended_at: float = 0.0
    reward: float | None = None
    versions: NDArray[np.int64] = field(init=False)
    """[completion] policy_version of each sampled token; -1 where unknown (then the mask is False)."""

    def __post_init__(self) -> None:
        n = len(self.completion_ids)
        for name in ("mask", "sampler_logprobs"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"turn {self.id}: {name} has {len(getattr(self, name))} entries for {n} completion tokens")
        versions = np.full(n, -1, np.int64)
        for span in self.spans:
            if not 0 <= span.start <= span.end <= n:
                raise ValueError(f"turn {self.id}: span {span} lies outside the {n} completion tokens")
            versions[span.start : span.end] = span.policy_version
        untrainable = (versions < 0) | ~np.isfinite(self.sampler_logprobs)
        if bool(np.any(self.mask & untrainable)):
            raise ValueError(f"turn {self.id}: a trained token lacks its version or its sampler logprob; set its mask to False")
        if self.sampling.temperature == 0 and bool(self.mask.any()):
            raise ValueError(f"turn {self.id}: greedy tokens cannot be trained; set their mask to False")
        object.__setattr__(self, "versions", versions)
        for array in (self.prompt_ids, self.completion_ids, self.mask, self.sampler_logprobs, versions):
            array.flags.writeable = False

    @property
    def own_len(self) -> int:
        """Tokens that this turn adds to the trie."""
        return len(self.prompt_ids) + len(self.completion_ids)
