"""The forest of rows: that it is the rows, that nothing is in it twice, and how it is cut under a budget."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.train.forest import LEAST_SHARED, Forest, grow, micro_batches

TWIGS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=12)
"""Rows of two letters: nearly all begin like another."""


def arrays(rows: list[list[int]]) -> list[np.ndarray]:
    return [np.array(row, np.int32) for row in rows]


def walked(forest: Forest, rows: list[np.ndarray], end: int) -> list[int]:
    """The tokens from the root to the end of a stretch."""
    stretch = forest.stretches[end]
    before = [] if stretch.parent is None else walked(forest, rows, stretch.parent)
    assert len(before) == stretch.start
    return before + rows[stretch.row][stretch.start : stretch.stop].tolist()


@st.composite
def families(draw) -> list[list[int]]:
    """Rows that begin with some tokens of one of three prompts."""
    members = st.tuples(st.integers(0, 2), st.integers(0, 60), st.lists(st.integers(0, 9), min_size=1, max_size=30))
    rows = draw(st.lists(members, min_size=1, max_size=20))
    return [[prompt] * shared + tail for prompt, shared, tail in rows]


@given(TWIGS)
def test_every_row_is_the_way_to_its_end(rows):
    forest = grow(arrays(rows), 1)
    assert [walked(forest, arrays(rows), end) for end in forest.ends] == rows


@given(TWIGS)
def test_every_prefix_is_computed_once(rows):
    stretches = grow(arrays(rows), 1).stretches
    assert sum(map(len, stretches)) == len({tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)})
    assert all(stretch.parent is None or stretch.parent < index for index, stretch in enumerate(stretches))


@given(families())
def test_less_than_is_worth_it_is_not_shared(rows):
    forest = grow(arrays(rows))
    assert [walked(forest, arrays(rows), end) for end in forest.ends] == rows
    assert all(stretch.start >= LEAST_SHARED for stretch in forest.stretches if stretch.parent is not None)


def test_a_group_shares_its_prompt_and_what_two_answers_begin_with():
    prompt = list(range(20))
    rows = arrays([[*prompt, 7, 8], [*prompt, 7, 9, 9], [*prompt, 5]])
    stretches = grow(rows).stretches
    assert sorted((stretch.start, stretch.stop) for stretch in stretches) == [(0, 20), (20, 21), (20, 21), (21, 22), (21, 23)]


def test_a_row_that_another_goes_on_from_has_no_stretch_of_its_own():
    rows = arrays([list(range(20)), list(range(30)), list(range(20))])
    forest = grow(rows)
    assert [(stretch.start, stretch.stop) for stretch in forest.stretches] == [(0, 20), (20, 30)]
    assert forest.ends == (0, 1, 0)


def test_a_thousand_forks_one_behind_the_other():
    rows = arrays([[0] * n + [1] for n in range(20, 1220)])
    assert sum(map(len, grow(rows).stretches)) == 1219 + 1200


def packed_tokens(rows: list[list[int]], batch: list[int]) -> int:
    return sum(map(len, grow(arrays([rows[index] for index in batch])).stretches))


@given(families(), st.integers(1, 200))
def test_micro_batches_hold_every_row_once_and_keep_the_budget(rows, budget):
    batches = micro_batches(arrays(rows), budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows)))
    for batch in batches:
        assert len(batch) == 1 or packed_tokens(rows, batch) <= budget


@given(families(), st.integers(90, 300))
def test_a_micro_batch_ends_where_the_next_row_has_no_room(rows, budget):
    batches = micro_batches(arrays(rows), budget)
    for batch, after in pairwise(batches):
        assert packed_tokens(rows, batch) + packed_tokens(rows, after) > budget


def test_groups_stay_together():
    rows = [[group] * 60 + [90 + member] * 12 for member in range(8) for group in range(6)]
    batches = micro_batches(arrays(rows), 2 * (60 + 8 * 12))
    assert sorted(sorted({rows[index][0] for index in batch}) for batch in batches) == [[0, 1], [2, 3], [4, 5]]


def test_a_group_over_the_budget_is_cut_between_rows():
    rows = arrays([[1] * 100 + [member] * 10 for member in range(2, 10)])
    assert sorted(map(len, micro_batches(rows, 150))) == [3, 5]


@pytest.mark.parametrize("budget", [1, 100])
def test_no_rows_make_no_micro_batch(budget):
    assert micro_batches([], budget) == []
