"""The section `[rollout]`: how episodes are produced, and how far generation may run ahead of training."""

from typing import Literal

from agentrl.config import Section
from agentrl.errors import ConfigError


class RolloutConfig(Section, frozen=True):
    """Read by the controller (policy, leases) and by the env workers (concurrency, heartbeats)."""

    workers: int = 1
    """Env worker processes."""
    concurrency: int = 64
    """Episodes at once in each worker."""
    policy: Literal["sync", "window"] = "window"
    """sync: step n+1 is generated after step n's weights are served. window: ahead, while tokens can still be trained within the window."""
    window: int = 2
    """k: tokens older than k published versions when they are consumed are masked."""
    on_update: Literal["keep", "prefix_resume"] = "keep"
    """Calls in flight when weights are published go on. keep: over their KV cache. prefix_resume: the exact prefix is prefilled anew."""
    lease_slack_s: float = 60.0
    """A lease lasts as long as its episode's limits allow, plus this."""
    heartbeat_s: float = 1.0
    """Between two signs of life of a worker."""
    lost_after_s: float = 15.0
    """A worker without a heartbeat for so long is dead: it is killed and its episodes are leased again."""
    frozen_after_s: float = 30.0
    """A worker whose event loop has not turned for so long is killed; the episode whose code holds the loop is blamed."""
    leaked_threads: int = 8
    """A worker with so many threads that outlived their deadline is replaced once its episodes have ended."""

    def check(self) -> None:
        for name in ("workers", "concurrency", "window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.{name}={getattr(self, name)}: use 1 or more")
        for name in ("heartbeat_s", "lost_after_s", "frozen_after_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"rollout.{name}={getattr(self, name)}: use a time above 0")
        if not self.lease_slack_s >= 0 or self.leaked_threads < 1:
            raise ConfigError(
                f"rollout.lease_slack_s={self.lease_slack_s}, rollout.leaked_threads={self.leaked_threads}: use 0 s or more, and 1 or more"
            )
        if self.lost_after_s < 3 * self.heartbeat_s:
            raise ConfigError(
                f"rollout.lost_after_s={self.lost_after_s} is less than three heartbeats of rollout.heartbeat_s={self.heartbeat_s}: "
                "a slow moment would kill workers; raise it"
            )
