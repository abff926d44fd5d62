"""What is optimised: advantages in numpy, and a loss that is Ratio × Gate × Aggregate over the rows' trained tokens.

Importing this package loads no torch: the controller computes advantages with it. The losses are in `objective.preset`.
"""

from agentrl.objective.advantage import Advantage, advantage_of
from agentrl.objective.config import ObjectiveConfig, Preset

__all__ = ["Advantage", "ObjectiveConfig", "Preset", "advantage_of"]
