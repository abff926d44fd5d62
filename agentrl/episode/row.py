"""Rows: a path's arrays, and all that an objective may see.

Alignment: entry i of every array speaks of token i given the tokens before it. So `sampler_logprobs[i]` is
log μ(token_ids[i] | token_ids[:i]), and a model's output at position i - 1 is what predicts it; token 0 is never trained.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.episode.trie import Path, Segment
from agentrl.episode.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One path of one agent run. All arrays are [tokens]. What is equal for a whole row (agent_run, group, policy) is stored once."""

    token_ids: NDArray[np.int32]
    position: NDArray[np.int32]
    owner: NDArray[np.bool_]
    """This row owns the token; a token shared by several paths has one owner."""
    mask: NDArray[np.bool_]
    """The token may be trained. Trained by this row: mask & owner."""
    sampler_logprobs: NDArray[np.float32]
    """nats; 0 where nothing was sampled"""
    temperature: NDArray[np.float32]
    """1 where nothing was sampled"""
    policy_version: NDArray[np.int64]
    """-1 where nothing was sampled"""
    advantage: NDArray[np.float32]
    turn: NDArray[np.int32]
    """Index into `turns` (a turn that is owned in part appears there twice)."""
    turns: tuple[str, ...]
    agent_run: str
    group: str
    policy: str

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trained(self) -> NDArray[np.bool_]:
        """[tokens] what this row contributes to the loss and its denominator."""
        return self.mask & self.owner


def row(path: Path, *, agent_run: str, group: str, policy: str, advantage: float = 0.0, oldest_version: int = 0) -> Row:
    """A path's arrays. Tokens sampled under a version before `oldest_version` are over the staleness bound: their mask is False."""
    segments = path.segments
    lengths = [segment.stop - segment.start for segment in segments]
    sampled = _column(segments, lambda turn: np.ones(len(turn.completion_ids), bool), elsewhere=False)
    versions = _column(segments, lambda turn: turn.versions, elsewhere=-1)
    mask = _column(segments, lambda turn: turn.mask, elsewhere=False) & (versions >= oldest_version)
    token_ids = path.token_ids()
    return Row(
        token_ids=token_ids,
        position=np.arange(len(token_ids), dtype=np.int32),
        owner=np.repeat([segment.owned for segment in segments], lengths) & sampled,
        mask=mask,
        sampler_logprobs=_column(segments, lambda turn: turn.sampler_logprobs, elsewhere=0),
        temperature=_column(segments, _temperatures, elsewhere=1),
        policy_version=versions,
        advantage=np.where(mask, np.float32(advantage), np.float32(0)),
        turn=np.repeat(np.arange(len(segments), dtype=np.int32), lengths),
        turns=tuple(segment.turn.id for segment in segments),
        agent_run=agent_run,
        group=group,
        policy=policy,
    )


def _temperatures(turn: Turn) -> NDArray[np.float32]:
    return np.full(len(turn.completion_ids), turn.sampling.temperature, np.float32)


def _column(segments: tuple[Segment, ...], of: Callable[[Turn], NDArray[Any]], *, elsewhere: float) -> NDArray[Any]:
    """[path] joins a per-completion array of each segment's turn, with `elsewhere` for prompt tokens."""
    pieces = []
    for segment in segments:
        values = of(segment.turn)
        whole = np.concatenate([np.full(len(segment.turn.prompt_ids), elsewhere, values.dtype), values])
        pieces.append(whole[segment.start : segment.stop])
    return np.concatenate(pieces)
