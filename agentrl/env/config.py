"""The section `[env]`: `--env.data rows.jsonl`, and whatever the environment's own `Config` adds."""

import re

from agentrl.config import Section
from agentrl.env.limits import Limits
from agentrl.errors import ConfigError


class EnvConfig(Section, frozen=True):
    """Base of every environment's `Config`."""

    data: str = ""
    """Rows for `self.rows`: a Hugging Face dataset name, a .jsonl, .json, .csv or .parquet file, or a folder of them."""
    limits: Limits = Limits()
    """Over those of the agents and tasks."""
    on_error: str = "mask"
    """For an episode that failed by no fault of the policy: "mask" (left out), "zero", or "retry(n)" (up to n more runs, then mask)."""
    on_truncate: str = "score"
    """For an agent run that met a limit: "score" (what reward says), "zero" or "mask"."""

    def check(self) -> None:
        if self.on_error not in ("mask", "zero") and not re.fullmatch(r"retry\(\d+\)", self.on_error):
            raise ConfigError(f"env.on_error={self.on_error!r}: use mask, zero or retry(n), such as retry(2)")
        if self.on_truncate not in ("score", "zero", "mask"):
            raise ConfigError(f"env.on_truncate={self.on_truncate!r}: use score, zero or mask")

    @property
    def retries(self) -> int:
        """How often a failed episode is run again."""
        retry = re.fullmatch(r"retry\((\d+)\)", self.on_error)
        return int(retry[1]) if retry else 0
