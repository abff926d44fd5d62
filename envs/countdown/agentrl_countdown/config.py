"""How hard the puzzles are: `--env.numbers 4 --env.operators +-`."""

import math

from agentrl.env import EnvConfig
from agentrl.errors import ConfigError

OPERATIONS = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}
MOST_EXPRESSIONS = 20_000
"""Of one hand; all of them are worked out to know which targets can be reached."""


class CountdownConfig(EnvConfig, frozen=True):
    """The section `[env]` of countdown."""

    numbers: int = 3
    """How many are given."""
    lowest: int = 1
    """Smallest number that is drawn."""
    highest: int = 9
    """Largest number that is drawn."""
    operators: str = "+-*"
    """Some of + - * /; each at least usable, none required."""
    any_order: bool = False
    """The numbers may be used in any order; otherwise as they are given."""
    hints: bool = True
    """The calculator says whether a result is too low or too high."""
    largest_target: int = 99
    """Targets are whole numbers from 1 to this."""

    def check(self) -> None:
        super().check()
        if not self.operators or set(self.operators) - set(OPERATIONS) or len(set(self.operators)) < len(self.operators):
            raise ConfigError(f"env.operators={self.operators!r}: write some of {''.join(OPERATIONS)}, each once")
        if not 0 <= self.lowest < self.highest:
            raise ConfigError(f"env.lowest={self.lowest}, env.highest={self.highest}: the range goes from a number of at least 0 upwards")
        if not 2 <= self.numbers <= 10 or self.expressions > MOST_EXPRESSIONS:
            raise ConfigError(
                f"env.numbers={self.numbers}: use 2 to 10 numbers that make at most {MOST_EXPRESSIONS} expressions of each hand "
                "(fewer numbers or operators, or any_order=false)"
            )
        if self.largest_target < 1:
            raise ConfigError(f"env.largest_target={self.largest_target}: use 1 or more")

    @property
    def expressions(self) -> int:
        """Of one hand, without parentheses, equal ones counted apart."""
        orders = math.factorial(self.numbers) if self.any_order else 1
        operators = math.prod(len(self.operators) for _ in range(self.numbers - 1))
        return orders * operators
