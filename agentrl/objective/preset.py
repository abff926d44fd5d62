"""Objective = Ratio × Gate × Aggregate, and the presets: which of each, with what numbers, from where."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from agentrl.objective.aggregate import Aggregate, run_mean, token_mean
from agentrl.objective.config import ObjectiveConfig
from agentrl.objective.gate import Clip, Gate
from agentrl.objective.ratio import Ratio, token_ratio
from agentrl.objective.tokens import Tokens


class Loss(NamedTuple):
    """To minimise. Summed over the micro-batches of an optimizer step it is the step's loss."""

    value: Float[Tensor, ""]
    closed: Bool[Tensor, " tokens"]
    """Where the gate lets no gradient through."""


@dataclass(frozen=True, slots=True)
class Objective:
    """L = -Σ_t weight_t · gate(ρ_t, A_t)."""

    ratio: Ratio
    gate: Gate
    aggregate: Aggregate

    def loss(self, tokens: Tokens) -> Loss:
        term, closed = self.gate(self.ratio(tokens), tokens.advantage)
        return Loss(value=-(tokens.weight * term).sum(), closed=closed)


def objective(config: ObjectiveConfig) -> Objective:
    """The preset, with the section's own clip bounds where it has any.

    default: one clipped ratio π/μ, clip 0.2 / 0.28 (arXiv:2503.14476), token mean.
    grpo: clip 0.2 / 0.2, mean over agent runs of token means (arXiv:2402.03300, eq. 3, with π_θold read as the sampler). The paper does not
        state ε; 0.2 is PPO's. Its KL term, β D_KL(π || π_ref) with β = 0.04, needs a frozen reference model and is left out: β = 0.
    reinforce: the default's loss over plain rewards; at π = μ its gradient is -A ∇ log π (Williams 1992), and the clip bounds stale tokens.
    """
    match config.preset:
        case "default" | "reinforce":
            low, high, aggregate = 0.2, 0.28, token_mean
        case "grpo":
            low, high, aggregate = 0.2, 0.2, run_mean
    gate = Clip(
        low=low if config.clip_low is None else config.clip_low,
        high=high if config.clip_high is None else config.clip_high,
    )
    return Objective(ratio=token_ratio, gate=gate, aggregate=aggregate)
