"""What a reward may be: a finite number, named finite numbers with weights, or None (masked). Anything else is refused, never guessed."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import msgspec

from agentrl.errors import EnvError


class Score(msgspec.Struct, frozen=True):
    """A checked reward."""

    total: float | None
    parts: dict[str, float] = {}
    """By component, before weights."""


def score(value: Any, weights: Mapping[str, float], *, where: str = "reward") -> Score:
    """total = Σ weight × component; a component without a weight weighs 1. Raises EnvError for NaN, infinities, text and the like."""
    if value is None:
        return Score(total=None)
    if not isinstance(value, Mapping):
        return Score(total=number(value, where))
    if not value:
        raise EnvError(f"{where} is an empty dict; return a number, named numbers, or None to leave the episode out")
    parts = {str(name): number(part, f"{where} component {name!r}") for name, part in value.items()}
    if missing := set(weights) - set(parts):
        raise EnvError(f"{where} has no component {', '.join(sorted(missing))}, which weights name; it has {', '.join(parts)}")
    return Score(total=sum(weights.get(name, 1.0) * part for name, part in parts.items()), parts=parts)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def number(value: Any, where: str) -> float:
    """Raises EnvError unless it is a finite number."""
    if not is_number(value):
        raise EnvError(f"{where} is {value!r} of type {type(value).__name__}; it must be a finite number")
    return float(value)
