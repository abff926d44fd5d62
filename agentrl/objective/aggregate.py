"""From tokens to one number: how much each trained token of an optimizer step weighs.

The weights are known before the forward, from counts alone. So the loss of a step is a plain sum over its tokens, and no way of cutting
the step into micro-batches or ranks can change it.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

Aggregate: TypeAlias = Callable[[Mapping[str, int]], Mapping[str, float]]
"""Trained tokens by agent run (over all its paths, in the whole optimizer step) to the weight of each of its tokens. The weights of all
tokens together sum to 1."""


def token_mean(tokens: Mapping[str, int]) -> dict[str, float]:
    """1 / Σ_i n_i: every token of the step counts the same (arXiv:2503.14476). Long agent runs weigh as much as they sampled."""
    total = sum(tokens.values())
    return {run: 1 / total for run, n in tokens.items() if n}


def run_mean(tokens: Mapping[str, int]) -> dict[str, float]:
    """1 / (R n_i): the mean over R agent runs of the mean over their tokens (arXiv:2402.03300, eq. 3: 1/G Σ_i 1/|o_i| Σ_t).

    Assumes groups of equal size, where the mean over runs is the mean over groups of the mean over members. Runs without a trained token
    are not counted. A token of a long run weighs less than one of a short run.
    """
    trained = {run: n for run, n in tokens.items() if n}
    return {run: 1 / (len(trained) * n) for run, n in trained.items()}
