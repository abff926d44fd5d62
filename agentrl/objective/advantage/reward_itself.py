"""The reward as its own advantage, where there is no group to compare with."""

import numpy as np
from numpy.typing import NDArray


def reward_itself(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = r_i (Williams 1992, REINFORCE without a baseline). Assumes rewards centred by their author: an all-positive reward pushes every
    sampled token up, and only the differences between updates teach."""
    return rewards.copy()
