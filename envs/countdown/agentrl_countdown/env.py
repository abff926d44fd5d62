"""The environment: tasks, the calculator as a tool, the reward, and the control that a skill must beat."""

from collections.abc import Iterator
from random import Random

from agentrl.env import Agent, Env, Episode, Limits, Split, Task, tool
from agentrl.episode import ChatMessage
from agentrl_countdown.arithmetic import parse
from agentrl_countdown.calculator import Calculator
from agentrl_countdown.config import OPERATIONS, CountdownConfig
from agentrl_countdown.demonstration import EXPERT, EXPERTS, NOVICE, Player
from agentrl_countdown.puzzle import Puzzle, Puzzles


class Countdown(Env):
    """Reach the target with the given numbers."""

    Config = CountdownConfig
    agent = Agent(limits=Limits(turns=6, tokens_per_turn=64))

    def __init__(self, config: CountdownConfig | None = None) -> None:
        super().__init__(config)
        self._puzzles = Puzzles(self.config)
        self._calculator = Calculator(self._puzzles, hints=self.config.hints)
        self._system = _rules(self.config)

    def tasks(self, split: Split) -> Iterator[Task]:
        for puzzle in self._puzzles.stream(held_out=split == "eval"):
            prompt = f"Numbers: {' '.join(map(str, puzzle.numbers))}. Target: {puzzle.target}."
            yield Task(prompt=prompt, answer=puzzle.target, system=self._system, data={"numbers": list(puzzle.numbers)})

    @tool
    async def calc(self, expression: str, ep: Episode) -> str:
        """Evaluate an arithmetic expression."""
        return self._calculator.says(expression, _puzzle(ep.task))

    async def reward(self, task: Task, ep: Episode) -> float:
        """1 if the last line of the answer is an expression of the given numbers that comes to the target; `= value` may follow it."""
        lines = ep.text.strip().splitlines() or [""]
        try:
            expression = parse(lines[-1].partition("=")[0])
        except ValueError:
            return 0.0
        puzzle = _puzzle(task)
        return float(expression.value == puzzle.target and self._puzzles.uses(expression, puzzle.numbers))

    def control_reward(self, task: Task, turns: int) -> float:
        """Random expressions until one hits, which is then the answer; the last turn answers at random: 1 - (1 - p)^turns."""
        puzzle = _puzzle(task)
        chance = len(self._puzzles.hits(puzzle)) / len(self._puzzles.expressions(puzzle.numbers))
        return 1.0 - (1.0 - chance) ** turns

    def demonstrations(self, task: Task, rng: Random) -> list[ChatMessage]:
        player = Player(self._puzzles, self._calculator, turns=self.bounds(task).turns)
        return player.play(_puzzle(task), self.opening(task), EXPERT if rng.random() < EXPERTS else NOVICE, rng)

    def gold(self, task: Task, rng: Random) -> list[ChatMessage]:
        return Player(self._puzzles, self._calculator, turns=2).play(_puzzle(task), self.opening(task), EXPERT, rng)


def _puzzle(task: Task) -> Puzzle:
    return Puzzle(numbers=tuple(task.data["numbers"]), target=task.answer)


def _rules(config: CountdownConfig) -> str:
    operations = " or ".join(OPERATIONS[operator] for operator in config.operators)
    order = "in any order" if config.any_order else "in the given order"
    return (
        f"Write an arithmetic expression that comes to the target. It uses each number exactly once, {order}, "
        f"joined by {operations}. Try expressions with calc, then answer with the expression alone."
    )
