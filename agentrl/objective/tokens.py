"""What an objective sees: the trained tokens of some rows, flat, as tensors."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Trained tokens only: owned by their row, with their mask set. All fp32."""

    trainer_logprobs: Float[Tensor, " tokens"]
    """π in nats, under the weights being trained; carries the gradient"""
    sampler_logprobs: Float[Tensor, " tokens"]
    """μ in nats, each token's own, whatever version sampled it"""
    advantage: Float[Tensor, " tokens"]
    weight: Float[Tensor, " tokens"]
    """The aggregate's: over one optimizer step, Σ weight · term is its mean."""
