import re
from fractions import Fraction

import pytest
from agentrl_countdown.arithmetic import parse
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3*4+5", 17),
        ("3+4*5", 23),
        ("(3+4)*5", 35),
        ("8-3-2", 3),
        ("8/4/2", 1),
        ("7/2", Fraction(7, 2)),
        ("1/3*3", 1),
        (" 12 + 3 ", 15),
        ("((7))", 7),
    ],
)
def test_values_are_exact_and_operators_bind_as_in_school(text: str, value: int | Fraction) -> None:
    assert parse(text).value == value


def test_numbers_are_listed_as_written() -> None:
    assert parse("(12-3)*4").numbers == (12, 3, 4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "a number is missing"),
        ("3+", "a number is missing"),
        ("-3+4", "a number is missing"),
        ("(3+4", "a parenthesis is not closed"),
        ("3+4)", "an operator is missing"),
        ("3 4", "an operator is missing"),
        ("5/(3-3)", "division by zero"),
        ("__import__('os')", "only whole numbers, operators and parentheses are arithmetic"),
        ("2**9", "a number is missing"),
        ("1.5+2", "only whole numbers, operators and parentheses are arithmetic"),
        ("٣+4", "only whole numbers, operators and parentheses are arithmetic"),
        ("(" * 500, "the expression is too long"),
    ],
)
def test_what_is_no_arithmetic_is_refused_in_words(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        parse(text)


@given(st.text(alphabet="0123456789+-*/() ", max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_is_refused_or_comes_to_what_python_says(text: str) -> None:
    try:
        value = parse(text).value
    except ValueError:
        return
    exact = re.sub("[0-9]+", lambda number: f"Fraction({int(number[0])})", text)
    assert value == eval(exact.strip(), {"Fraction": Fraction})
