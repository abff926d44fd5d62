"""Lengths by tenths."""

from agentrl.ledger.deciles import Deciles


def test_a_hundred_lengths_fall_into_ten_tenths() -> None:
    deciles = Deciles()
    for length in range(100):
        deciles.add(length)
    assert [deciles.of(length) for length in (0, 9, 10, 55, 99, 1000)] == [0, 0, 1, 5, 9, 9]


def test_only_the_latest_count() -> None:
    deciles = Deciles(window=10)
    for length in [*range(1000, 1100), *range(10)]:
        deciles.add(length)
    assert deciles.of(5) == 5
    assert deciles.of(1000) == 9


def test_the_first_length_is_in_the_first_tenth() -> None:
    assert Deciles().of(7) == 0
