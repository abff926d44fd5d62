"""The trainer's section: how much data makes a step, and what the optimizer does with it."""

from typing import Literal

from agentrl.config import Section
from agentrl.errors import ConfigError


class TrainConfig(Section, frozen=True):
    """A step is one optimizer update; groups_per_step closed groups feed `minibatches` of them."""

    steps: int = 160
    """Optimizer updates of the whole run; the schedule ends there."""
    groups_per_step: int = 16
    """Closed groups that are consumed together (dropped ones count)."""
    group_size: int = 8
    """Episodes of each task."""
    minibatches: int = 1
    """Optimizer updates made of groups_per_step groups, each of other episodes."""
    publish_every: int = 1
    """Optimizer updates between two publications of weights."""
    lr: float = 1e-6
    """Peak learning rate. 0 leaves the weights bit-equal (a control)."""
    warmup_steps: int = 0
    """Optimizer updates over which the learning rate rises linearly; a run of fewer steps ends below the peak."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up; linear and cosine end at 0 after `steps`."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's."""
    eps: float = 1e-8
    """AdamW's."""
    weight_decay: float = 0.0
    """Of matrices; norms and biases never decay."""
    grad_clip: float = 1.0
    """Largest norm of the whole gradient; 0 clips nothing."""
    max_tokens_per_microbatch: int = 4096
    """Tokens in one forward and backward, what rows share from their start once. A longer row goes alone. Never changes the loss."""
    gradient_checkpointing: bool = False
    """Recompute activations layer by layer: less memory, a third more time."""
    save_every: int = 50
    """Optimizer updates between two checkpoints (rounded up to the end of a batch); 0: only at the end."""
    keep_checkpoints: int = 2
    """Newest checkpoints that stay on disk."""
    device: str = "auto"
    """"auto", "cpu", "mps" or "cuda"."""
    threads: int = 1
    """Of torch, on the CPU."""

    def check(self) -> None:
        positive = ("steps", "groups_per_step", "group_size", "minibatches", "publish_every", "max_tokens_per_microbatch", "threads")
        for name in (*positive, "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name}={getattr(self, name)}: use 1 or more")
        for name in ("lr", "warmup_steps", "weight_decay", "grad_clip", "save_every"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"train.{name}={getattr(self, name)}: use 0 or more")
        if not all(0 <= beta < 1 for beta in self.betas) or self.eps <= 0:
            raise ConfigError(
                f"train.betas={self.betas}, train.eps={self.eps}: betas lie in [0, 1) and eps above 0, such as 0.9,0.95 and 1e-8"
            )
        if self.minibatches > self.groups_per_step * self.group_size:
            raise ConfigError(
                f"train.minibatches={self.minibatches}: a batch holds only {self.groups_per_step} × {self.group_size} episodes; use fewer"
            )
