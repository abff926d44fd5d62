"""Draws tokens, and reports the logprob of the very distribution that it drew from (μ).

μ = log-softmax(logits / T) over the tokens that survive truncation, in fp32. A draw inverts the cumulative distribution at one uniform
number, so a seed costs one generator of the call's own, and no noise of the vocabulary's size is made. Truncation sorts, and only the rows
that ask for it pay.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.engine.torch.call import Call
from agentrl.episode import Sampling

_BELOW_ONE = 1.0 - 2.0**-22
"""Keeps a uniform number below the last cumulative sum in fp32."""


@dataclass(slots=True)
class Drawn:
    """One token for each row."""

    token_ids: list[int]
    """-1: the row's logits are not numbers."""
    logprobs: list[float]
    """nats; of a greedy row, under T = 1"""
    support: list[tuple[int, ...] | None]
    """Token ids that survived truncation, ascending; None where it was not asked for or nothing was truncated."""


def draw(logits: Tensor, calls: list[Call]) -> Drawn:
    """Sample after logits [calls, vocab], each row as its call asks."""
    samplings = [call.sampling for call in calls]
    logits = logits.float()
    if any(sampling.temperature not in (0.0, 1.0) for sampling in samplings):
        logits = logits / _column([sampling.temperature or 1.0 for sampling in samplings], logits)
    probs = logits.softmax(-1)
    truncated = [row for row, sampling in enumerate(samplings) if _truncates(sampling)]
    if truncated:
        probs[truncated] = _truncate(probs[truncated], [samplings[row] for row in truncated])
    sums = probs.cumsum(-1)
    uniforms = _column([call.uniform() * _BELOW_ONE for call in calls], logits)
    # A row that holds something else than numbers must not stop the others.
    finite = sums[:, -1:].isfinite()
    chosen = torch.searchsorted(sums, uniforms * sums[:, -1:], right=True).where(finite, 0)
    greedy = [row for row, sampling in enumerate(samplings) if sampling.temperature == 0.0]
    if greedy:
        chosen[greedy] = logits[greedy].argmax(-1, keepdim=True)
    # A drawn token's probability is far above what fp32 rounds away, so its logarithm is as good as a log-softmax.
    logprobs = probs.gather(1, chosen).log()
    token_ids: list[int] = chosen.where(finite, -1)[:, 0].tolist()
    return Drawn(token_ids, logprobs[:, 0].tolist(), _supports(probs, samplings))


def _truncates(sampling: Sampling) -> bool:
    return sampling.temperature > 0.0 and (sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0)


def _truncate(probs: Tensor, samplings: list[Sampling]) -> Tensor:
    """Zero what top_k, then top_p over the rest (renormalised), then min_p cut, and renormalise. The likeliest token always survives."""
    vocab = probs.shape[-1]
    ordered, order = probs.sort(stable=True, dim=-1, descending=True)
    rank = torch.arange(vocab, device=probs.device)
    alive = rank < _column([sampling.top_k or vocab for sampling in samplings], probs)
    ordered = ordered * alive
    before = ordered.cumsum(-1) - ordered
    # At top_p = 1 rounding must not cut the tail, so the bound is out of reach.
    bounds = _column([sampling.top_p if sampling.top_p < 1.0 else 2.0 for sampling in samplings], probs)
    alive &= before < bounds * ordered.sum(-1, keepdim=True)
    alive &= ordered >= _column([sampling.min_p for sampling in samplings], probs) * ordered[:, :1]
    alive[:, 0] = True
    kept = torch.zeros_like(probs).scatter(1, order, ordered * alive)
    return kept / kept.sum(-1, keepdim=True)


def _supports(probs: Tensor, samplings: list[Sampling]) -> list[tuple[int, ...] | None]:
    return [
        tuple(probs[row].nonzero()[:, 0].tolist()) if sampling.support and _truncates(sampling) else None
        for row, sampling in enumerate(samplings)
    ]


def _column(values: list[float] | list[int], like: Tensor) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32)).to(like.device)[:, None]
