"""What one optimizer update tells of itself: sums over its micro-batches, so that the numbers do not depend on how it was cut.

Tensors are summed where they are and read once, at the end: reading one makes a GPU wait.
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from agentrl.objective.preset import Loss
from agentrl.train.head import HeadOutput
from agentrl.train.microbatch import MicroBatch


class Tally:
    """`held_version`: the publication that the present weights are, bit by bit; None after an unpublished update."""

    def __init__(self, *, policy_version: int, held_version: int | None) -> None:
        self._policy_version = policy_version
        self._held_version = held_version
        self._sums: dict[str, Tensor] = {}
        self._peaks: dict[str, Tensor] = {}
        self._packed_tokens = 0

    @torch.no_grad()
    def add(self, micro: MicroBatch, head: HeadOutput, loss: Loss) -> None:
        log_ratio = head.logprobs - micro.sampler_logprobs
        gap, staleness = log_ratio.abs(), self._policy_version - micro.policy_version
        fresh = self._fresh(micro)
        self._packed_tokens += micro.packed.token_ids.numel()
        self._sum("tokens", torch.ones_like(gap))
        self._sum("fresh", fresh)
        self._sum("loss", loss.value)
        self._sum("clip_fraction", loss.closed)
        self._sum("gap_nats", gap)
        self._sum("gap_nats_staleness_0", gap * fresh)
        # KL(μ || π) by the estimator k3 = ρ - 1 - log ρ: unbiased, and never negative.
        self._sum("kl_k3", log_ratio.expm1() - log_ratio)
        self._sum("entropy", head.entropy)
        self._sum("staleness_mean", staleness)
        self._peak("gap_nats_max", gap)
        self._peak("gap_nats_staleness_0_max", gap * fresh)
        self._peak("staleness_max", staleness)

    def _fresh(self, micro: MicroBatch) -> Bool[Tensor, " trained"]:
        """Sampled by the very weights that are held now, over KV that is all theirs: there π and μ should agree."""
        if self._held_version is None:
            return torch.zeros_like(micro.policy_version, dtype=torch.bool)
        return (micro.policy_version == self._held_version) & (micro.kv_oldest_version >= self._held_version)

    def _sum(self, name: str, values: Tensor) -> None:
        total = values.double().sum() if values.device.type != "mps" else values.float().sum()
        self._sums[name] = self._sums[name] + total if name in self._sums else total

    def _peak(self, name: str, values: Tensor) -> None:
        if values.numel():
            peak = values.max()
            self._peaks[name] = torch.maximum(self._peaks[name], peak) if name in self._peaks else peak

    def metrics(self) -> dict[str, float]:
        """Means over the trained tokens. What no token speaks for is absent."""
        sums = {name: float(value) for name, value in self._sums.items()}
        peaks = {name: float(value) for name, value in self._peaks.items()}
        tokens, fresh, loss = sums.pop("tokens", 0.0), sums.pop("fresh", 0.0), sums.pop("loss", 0.0)
        at_0 = sums.pop("gap_nats_staleness_0", 0.0)
        if not fresh:
            peaks.pop("gap_nats_staleness_0_max", None)
        means = {name: value / tokens for name, value in sums.items()} if tokens else {}
        return {
            "loss": loss,
            **means,
            **peaks,
            **({"gap_nats_staleness_0": at_0 / fresh} if fresh else {}),
            "fresh_tokens": fresh,
            "packed_tokens": float(self._packed_tokens),
        }
