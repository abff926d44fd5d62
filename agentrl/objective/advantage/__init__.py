"""Advantages: from the rewards of a closed group to one number for each of its agent runs. Numpy only; the controller computes them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.objective.advantage.mean_centred import mean_centred
from agentrl.objective.advantage.reward_itself import reward_itself
from agentrl.objective.advantage.shuffled import shuffled
from agentrl.objective.advantage.standardised import standardised
from agentrl.objective.config import Preset

__all__ = ["Advantage", "advantage_of", "mean_centred", "reward_itself", "shuffled", "standardised"]


@dataclass(frozen=True, slots=True)
class Advantage:
    """How a preset judges a group's rewards."""

    of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    """[group] rewards of the survivors to [group] advantages"""
    survivors: int
    """A closed group with fewer is dropped."""
    compares: bool
    """Rewards are compared within the group, so one with equal rewards teaches nothing and is dropped."""


def advantage_of(preset: Preset) -> Advantage:
    """The preset's advantage."""
    match preset:
        case "default":
            return Advantage(mean_centred, survivors=2, compares=True)
        case "grpo":
            return Advantage(standardised, survivors=2, compares=True)
        case "reinforce":
            return Advantage(reward_itself, survivors=1, compares=False)
