"""How far the policy is from the one that sampled, per token.

There is one correction and this is it: π over the sampler's own μ. A forward under "the old policy" would correct a second time, and with
mixed versions there is no one old policy: each token brings the μ it was sampled with.
"""

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from agentrl.objective.tokens import Tokens

Ratio: TypeAlias = Callable[[Tokens], Float[Tensor, " tokens"]]


def token_ratio(tokens: Tokens) -> Float[Tensor, " tokens"]:
    """ρ_t = π(a_t | s_t) / μ(a_t | s_t)."""
    return (tokens.trainer_logprobs - tokens.sampler_logprobs).exp()
