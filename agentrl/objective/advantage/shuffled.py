"""A control: what training does when rewards say nothing.

Rewards are permuted within their group before they are judged, so every statistic of the objective stays as it was (the same rewards, the
same advantages, the same step sizes) and only their bond to what was done is cut. A curve that still rises is not learning from rewards.
"""

from collections.abc import Callable
from random import Random

import numpy as np
from numpy.typing import NDArray


def shuffled(
    of: Callable[[NDArray[np.float64]], NDArray[np.float64]], *, seed: int
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """`of`, over rewards in random order. [group] to [group]"""
    random = Random(seed)

    def judge(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        order = list(range(len(rewards)))
        random.shuffle(order)
        return of(rewards[order])

    return judge
