"""Conversations of a player of mixed skill, for warm starts.

They show everything that can be done, and no policy worth keeping: some players aim well, others try at random, answer before they know,
or go on after a hit; some calls are slips. A model that imitates all this starts low, with the skill in it, and reinforcement learning
has something to find. Tries are never repeated.
"""

import json
from random import Random

import msgspec

from agentrl.env import assistant, tool_result
from agentrl.episode import ChatMessage, ToolCall
from agentrl_countdown.calculator import Calculator
from agentrl_countdown.puzzle import Puzzle, Puzzles


class Skill(msgspec.Struct, frozen=True):
    """Probabilities, each of one decision of a player."""

    aims: float
    """A try is a solution."""
    narrows: float
    """A try that is no aimed one lies between the closest results so far."""
    slips: float
    """A call is not what the rules ask for."""
    quits: float
    """Answers at random instead of trying on."""
    submits: float
    """Answers with a hit instead of trying on."""


EXPERT = Skill(aims=1.0, narrows=0.0, slips=0.0, quits=0.0, submits=1.0)
NOVICE = Skill(aims=0.3, narrows=0.5, slips=0.03, quits=0.25, submits=0.7)
EXPERTS = 0.3
"""Share of conversations that an expert leads."""


class Player:
    """Plays one puzzle from the given opening to an answer."""

    def __init__(self, puzzles: Puzzles, calculator: Calculator, *, turns: int) -> None:
        self._puzzles = puzzles
        self._calculator = calculator
        self._turns = turns

    def play(self, puzzle: Puzzle, opening: list[ChatMessage], skill: Skill, rng: Random) -> list[ChatMessage]:
        """The whole conversation."""
        said = list(opening)
        tried: list[str] = []
        for turn in range(self._turns):
            answer = self._answer(puzzle, tried, skill, rng, last=turn == self._turns - 1)
            if answer is not None:
                return [*said, assistant(answer)]
            tried.append(self._try(puzzle, tried, skill, rng))
            said += self._call(puzzle, tried[-1] if rng.random() >= skill.slips else _slip(tried.pop(), rng))
        raise AssertionError("the last turn answers")

    def _answer(self, puzzle: Puzzle, tried: list[str], skill: Skill, rng: Random, *, last: bool) -> str | None:
        if tried and tried[-1] in self._puzzles.hits(puzzle) and rng.random() < skill.submits:
            return tried[-1]
        if last or rng.random() < skill.quits:
            return rng.choice(self._puzzles.expressions(puzzle.numbers))[0]
        return None

    def _try(self, puzzle: Puzzle, tried: list[str], skill: Skill, rng: Random) -> str:
        if rng.random() < skill.aims:
            return rng.choice(self._puzzles.hits(puzzle))
        expressions = dict(self._puzzles.expressions(puzzle.numbers))
        fresh = [text for text in expressions if text not in tried] or list(expressions)
        if rng.random() < skill.narrows:
            below = max((expressions[text] for text in tried if expressions[text] < puzzle.target), default=None)
            above = min((expressions[text] for text in tried if expressions[text] > puzzle.target), default=None)
            between = [
                text for text in fresh if (below is None or expressions[text] > below) and (above is None or expressions[text] < above)
            ]
            return rng.choice(between or fresh)
        return rng.choice(fresh)

    def _call(self, puzzle: Puzzle, expression: str) -> list[ChatMessage]:
        call = ToolCall(id="call", name="calc", arguments=json.dumps({"expression": expression}))
        return [assistant(calls=[call]), tool_result(call, self._calculator.told(expression, puzzle))]


def _slip(expression: str, rng: Random) -> str:
    """A number missing at the end, or another number in its place."""
    return expression[:-1] if rng.random() < 0.5 else expression[:-1] + str(rng.randint(1, 9))
