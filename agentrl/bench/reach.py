"""The environment of the whole-path figure: a calculator over several turns, as in countdown, with nothing to compute."""

import itertools
from collections.abc import Iterator

from agentrl.env import Agent, Env, Episode, Limits, Task, tool

RULES = (
    "Write an arithmetic expression that comes to the target. It uses each number exactly once, in any order, joined by + or - or *. "
    "Try expressions with calc, then answer with the expression alone."
)
ANSWER = "3*7-4"
"""Earns 1; any other earns 0."""


class Reach(Env):
    """Reach the target with the given numbers."""

    agent = Agent(limits=Limits(turns=8, tokens_per_turn=64))

    def tasks(self, split: str) -> Iterator[Task]:
        for number in itertools.count():
            yield Task(prompt=f"Numbers: 3 4 {number}. Target: 17.", answer=ANSWER, system=RULES, data={"numbers": [3, 4, number]})

    @tool
    async def calc(self, expression: str) -> str:
        """Evaluate an arithmetic expression."""
        return f"{len(expression)}, too low"

    async def reward(self, task: Task, ep: Episode) -> float:
        return float(ep.text.strip() == task.answer)
