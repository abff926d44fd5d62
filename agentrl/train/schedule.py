"""The learning rate as a function of the step alone, so that a resume needs no state of it."""

import math

from agentrl.train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Of optimizer update `step` (the first is 1): lr · warm-up · decay.

    warm-up = min(1, step / warmup_steps). After it, with x from 0 (first step past the warm-up) towards 1 (just after the last step):
    constant 1, linear 1 - x, cosine (1 + cos πx) / 2. The last step still moves.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps - 1) / max(1, config.steps - config.warmup_steps))
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - done)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * done)) / 2
