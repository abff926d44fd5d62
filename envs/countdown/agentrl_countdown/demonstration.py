"""Conversations of players of mixed skill, for warm starts.

They show everything that can be done, and no policy worth keeping: some tries aim well and most are guesses, some answers come before
anything is known, some calls are slips. A player who aims says so. A model that imitates all this starts low with the skill in it, and
reinforcement learning has something to find: what is worth saying, when to answer, and how to aim better.
"""

import json
from random import Random

import msgspec

from agentrl.env import assistant, tool_result
from agentrl.episode import ChatMessage, ToolCall
from agentrl_countdown.calculator import Calculator
from agentrl_countdown.puzzle import Puzzle, Puzzles

AIMED = "This should work."
GUESSED = "Let me try."


class Skill(msgspec.Struct, frozen=True):
    """Probabilities, each of one decision of a player."""

    aims: float
    """A try is a solution; otherwise it is any expression that was not tried before."""
    slips: float
    """A guess is not what the rules ask for."""
    rushes: float
    """Answers at random before any try."""
    quits: float
    """Answers at random after a try that is no hit."""
    submits: float
    """Answers with a hit instead of trying on."""


EXPERT = Skill(aims=1.0, slips=0.0, rushes=0.0, quits=0.0, submits=1.0)
NOVICE = Skill(aims=0.4, slips=0.03, rushes=0.45, quits=0.27, submits=0.9)
EXPERTS = 0.25
"""Share of conversations that an expert leads."""


class Player:
    """Plays puzzles of one difficulty."""

    def __init__(self, puzzles: Puzzles, calculator: Calculator, *, turns: int) -> None:
        self._puzzles = puzzles
        self._calculator = calculator
        self._turns = turns

    def play(self, puzzle: Puzzle, opening: list[ChatMessage], skill: Skill, rng: Random) -> list[ChatMessage]:
        """The whole conversation, from the given opening to an answer."""
        said = list(opening)
        expressions = [text for text, _ in self._puzzles.expressions(puzzle.numbers)]
        hits = self._puzzles.hits(puzzle)
        tried: list[str] = []
        while len(tried) < self._turns - 1:
            hit = bool(tried) and tried[-1] in hits
            if rng.random() < (skill.submits if hit else skill.quits if tried else skill.rushes):
                return [*said, assistant(tried[-1] if hit else rng.choice(expressions))]
            fresh_hits = [text for text in hits if text not in tried]
            aims = bool(fresh_hits) and rng.random() < skill.aims
            expression = rng.choice(fresh_hits if aims else [text for text in expressions if text not in tried] or expressions)
            if not aims and rng.random() < skill.slips:
                expression = _slip(expression, rng)
            said += self._call(puzzle, AIMED if aims else GUESSED, expression)
            tried.append(expression)
        return [*said, assistant(tried[-1] if tried and tried[-1] in hits else rng.choice(expressions))]

    def _call(self, puzzle: Puzzle, words: str, expression: str) -> list[ChatMessage]:
        call = ToolCall(id="call", name="calc", arguments=json.dumps({"expression": expression}))
        return [assistant(words, calls=[call]), tool_result(call, self._calculator.told(expression, puzzle))]


def _slip(expression: str, rng: Random) -> str:
    """A number missing at the end, or another one in its place."""
    return expression[:-1] + rng.choice(["", str(rng.randint(1, 9))])
