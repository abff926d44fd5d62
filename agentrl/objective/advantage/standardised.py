"""Rewards in units of their group's standard deviation, as GRPO was published."""

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-4
"""Added to the standard deviation. The paper names none; this is that of the first public implementation (TRL)."""


def standardised(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-4), std with ddof = 1 (arXiv:2402.03300, section 4.1.2, outcome supervision).

    The paper leaves the ddof open; 1 is that of the first public implementation (TRL). Assumes at least two rewards.
    """
    return np.asarray((rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON), np.float64)
