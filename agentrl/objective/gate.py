"""What lets a token's gradient through, and how much of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Gated(NamedTuple):
    """Terms to maximise, and where the gate stood closed."""

    term: Float[Tensor, " tokens"]
    closed: Bool[Tensor, " tokens"]
    """The token has an advantage and no gradient."""


Gate: TypeAlias = Callable[[Float[Tensor, " tokens"], Float[Tensor, " tokens"]], Gated]


@dataclass(frozen=True, slots=True)
class Clip:
    """min(ρ A, clip(ρ, 1 - low, 1 + high) A): PPO's pessimistic surrogate (arXiv:1707.06347, eq. 7).

    With high > low (arXiv:2503.14476, "clip higher") unlikely tokens may grow faster than likely ones shrink, which keeps entropy up.
    Assumes that ρ starts near 1: an update made of very stale tokens begins with closed gates.
    """

    low: float
    high: float

    def __call__(self, ratio: Float[Tensor, " tokens"], advantage: Float[Tensor, " tokens"]) -> Gated:
        free, clipped = ratio * advantage, ratio.clamp(1 - self.low, 1 + self.high) * advantage
        return Gated(term=torch.minimum(free, clipped), closed=(clipped < free).detach())
