import itertools

import pytest
from agentrl_countdown import CountdownConfig
from agentrl_countdown.arithmetic import parse
from agentrl_countdown.puzzle import Puzzle, Puzzles

from agentrl.config import build
from agentrl.errors import ConfigError


def test_every_puzzle_comes_once_and_can_be_solved() -> None:
    puzzles = Puzzles(CountdownConfig(highest=4))
    found = [*puzzles.stream(held_out=False), *puzzles.stream(held_out=True)]
    assert len(set(found)) == len(found)
    assert {puzzle.numbers for puzzle in found} == set(itertools.product(range(1, 5), repeat=3))
    assert all(puzzles.hits(puzzle) for puzzle in found)


def test_held_out_numbers_are_in_no_training_puzzle_in_any_order() -> None:
    puzzles = Puzzles(CountdownConfig())
    train = {tuple(sorted(puzzle.numbers)) for puzzle in puzzles.stream(held_out=False)}
    held_out = {tuple(sorted(puzzle.numbers)) for puzzle in puzzles.stream(held_out=True)}
    assert not train & held_out
    assert len(train) + len(held_out) == 165  # multisets of 3 of 9 numbers
    assert 15 <= len(held_out) <= 50


def test_solutions_of_a_hand_worked_puzzle() -> None:
    puzzles = Puzzles(CountdownConfig())
    assert puzzles.hits(Puzzle(numbers=(3, 4, 5), target=17)) == ["3*4+5"]
    assert puzzles.hits(Puzzle(numbers=(2, 2, 1), target=4)) == ["2+2*1", "2*2*1"]


def test_order_counts_unless_any_will_do() -> None:
    given = Puzzle(numbers=(5, 3, 4), target=17)
    assert Puzzles(CountdownConfig()).hits(given) == ["5+3*4"]
    any_order = Puzzles(CountdownConfig(any_order=True))
    assert set(any_order.hits(given)) == {"5+3*4", "5+4*3", "3*4+5", "4*3+5", "4*5-3", "5*4-3"}
    assert any_order.uses(parse("(4)*3+5"), given.numbers)
    assert not Puzzles(CountdownConfig()).uses(parse("3*4+5"), given.numbers)
    assert not any_order.uses(parse("3*4+5+0"), given.numbers)


def test_a_huge_range_streams() -> None:
    puzzles = Puzzles(CountdownConfig(numbers=6, highest=1000, operators="+-"))
    first = list(itertools.islice(puzzles.stream(held_out=False), 20))
    assert len(set(first)) == 20
    assert all(1 <= puzzle.target <= 99 for puzzle in first)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"operators": "+x"}, "write some of"),
        ({"operators": ""}, "write some of"),
        ({"lowest": "9", "highest": "9"}, "range goes from"),
        ({"numbers": "1"}, "use 2 to 10 numbers"),
        ({"numbers": "7", "any_order": "true"}, "at most 20000 expressions"),
        ({"largest_target": "0"}, "use 1 or more"),
    ],
)
def test_nonsense_is_refused_with_the_fix(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build(CountdownConfig, settings, where="env")
