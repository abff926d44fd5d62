"""The task families of the `reasoning-gym` package, each with its own scorer."""

from agentrl_reasoning_gym.env import ReasoningGym

__all__ = ["ReasoningGym"]
