"""Limits of an episode, set by whoever knows best, field by field.

A field left at None is inherited: the defaults below are overridden by the agent (its author's code), that by the task (its row), that by
the configuration (the person at the keyboard). Every wait for user code has a bound, so an episode always ends.
"""

from typing import Any

import msgspec

from agentrl.config import Section
from agentrl.errors import ConfigError


class Limits(Section, frozen=True):
    """What one episode may use. None: inherited."""

    turns: int | None = None
    """Model calls of one agent run."""
    tokens: int | None = None
    """Sampled tokens of one agent run, over all its turns."""
    tokens_per_turn: int | None = None
    """Sampled tokens of one model call; a longer one is cut."""
    setup_s: float | None = None
    """Each of setup and teardown."""
    run_s: float | None = None
    """The whole of `run`, all agents and tools."""
    tool_s: float | None = None
    """Each tool call."""
    reward_s: float | None = None
    """Grading."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"limits.{name}={value}: give a number above 0, or leave it out for the default")


class Bounds(msgspec.Struct, frozen=True):
    """Limits with every inheritance resolved. The defaults here are the defaults of `Limits`."""

    turns: int = 16
    tokens: int | None = None
    tokens_per_turn: int | None = None
    """None: what the context leaves."""
    setup_s: float = 120.0
    run_s: float = 1200.0
    tool_s: float = 60.0
    reward_s: float = 120.0


def bounds(*layers: Limits | None) -> Bounds:
    """Later layers win, field by field.

    >>> bounds(Limits(turns=8, tool_s=5), Limits(turns=4)).turns
    4
    """
    values: dict[str, Any] = {}
    for layer in layers:
        if layer is not None:
            values |= {name: value for name in layer.__struct_fields__ if (value := getattr(layer, name)) is not None}
    return Bounds(**values)
