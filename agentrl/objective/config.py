"""The objective's section: a preset's name, and the few numbers of it that people change.

A preset is a whole: its advantage, ratio, gate and aggregate were published and tested together. So the section names one, and what is left
at None is the preset's own.
"""

from typing import Literal

from agentrl.config import Section
from agentrl.errors import ConfigError

Preset = Literal["default", "grpo", "reinforce"]


class ObjectiveConfig(Section, frozen=True):
    """Which objective, and where it departs from the preset as published."""

    preset: Preset = "default"
    """default: mean-centred rewards, one clipped ratio π/μ, token mean. grpo: as published (arXiv:2402.03300), without its KL term.
    reinforce: plain rewards, for groups of one."""
    clip_low: float | None = None
    """The ratio π/μ is clipped below at 1 - clip_low. None: the preset's."""
    clip_high: float | None = None
    """The ratio π/μ is clipped above at 1 + clip_high. None: the preset's."""

    shuffle_rewards: bool = False
    """A control: rewards are permuted within their group before they are judged, so that there is nothing to learn."""

    def check(self) -> None:
        if self.clip_low is not None and not 0 < self.clip_low <= 1:
            raise ConfigError(
                f"objective.clip_low={self.clip_low}: the ratio is clipped at 1 - clip_low; use a value in (0, 1], such as 0.2"
            )
        if self.clip_high is not None and not 0 < self.clip_high < float("inf"):
            raise ConfigError(
                f"objective.clip_high={self.clip_high}: the ratio is clipped at 1 + clip_high; use a value above 0, such as 0.28"
            )

    def check_group_size(self, group_size: int) -> None:
        """Called where the group size is known. Raises ConfigError if no group of that size could ever be trained."""
        if self.preset != "reinforce" and group_size < 2:
            raise ConfigError(
                f"group_size={group_size} gives zero advantages with objective.preset={self.preset!r}, which compares rewards in a group; "
                "use 2 or more, or --objective.preset reinforce"
            )
