"""Rewards less their group's mean: the unbiased direction, and the size of the step follows the size of the reward.

Dividing by the group's standard deviation (GRPO) weighs nearly solved and nearly hopeless tasks most, where a single lucky reward decides.
"""

import numpy as np
from numpy.typing import NDArray


def mean_centred(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = r_i - mean(r) (arXiv:2503.20783, "Dr. GRPO"). Assumes rewards of comparable scale over tasks, such as all in [0, 1]."""
    return np.asarray(rewards - rewards.mean(), np.float64)
