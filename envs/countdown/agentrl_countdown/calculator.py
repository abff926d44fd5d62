"""What the calculator says: the value, and how it lies to the target."""

from agentrl.errors import ToolError
from agentrl_countdown.arithmetic import parse
from agentrl_countdown.puzzle import Puzzle, Puzzles


class Calculator:
    """Of one difficulty: with or without hints."""

    def __init__(self, puzzles: Puzzles, *, hints: bool) -> None:
        self._puzzles = puzzles
        self._hints = hints

    def says(self, text: str, puzzle: Puzzle) -> str:
        """Raises ToolError for what is no arithmetic."""
        try:
            expression = parse(text)
        except ValueError as cause:
            raise ToolError(str(cause)) from cause
        if not self._hints:
            return str(expression.value)
        if not self._puzzles.uses(expression, puzzle.numbers):
            return f"{expression.value}, not with the given numbers"
        if expression.value == puzzle.target:
            return f"{expression.value}, target reached"
        return f"{expression.value}, too {'low' if expression.value < puzzle.target else 'high'}"

    def told(self, text: str, puzzle: Puzzle) -> str:
        """As a model reads it, complaints included."""
        try:
            return self.says(text, puzzle)
        except ToolError as complaint:
            return f"Error: {complaint}"
