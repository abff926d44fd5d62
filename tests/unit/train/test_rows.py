"""From handles to rows: who is trained, who is masked, and what is refused."""

import numpy as np
import pytest

from agentrl.errors import StoreError, TrainError
from agentrl.ledger.feed import FeedEpisode
from agentrl.train.rows import read_rows, tokens_by_run
from tests.unit.train.feed import Blobs, one_batch, turn


def read(blobs, episodes, tokens, *, oldest_version=0):
    return read_rows(one_batch(1, episodes, tokens).minibatches[0], blobs.open, oldest_version=oldest_version)


def test_shared_tokens_are_trained_by_one_path_and_count_once():
    blobs = Blobs()
    root = turn("root", "r", prompt=4, completion=5)
    children = [turn(name, "r", prompt=2, completion=3, seed=i, parent=("root", 9)) for i, name in enumerate("xy")]
    rows = read(blobs, [blobs.seal("e", [root, *children], {"r": 1.0})], 5 + 3 + 3)
    assert [int(found.row.trained.sum()) for found in rows] == [8, 3]
    assert tokens_by_run(rows) == {"r": 11}


def test_a_path_without_a_token_of_its_own_is_left_away():
    blobs = Blobs()
    root = turn("root", "r", prompt=4, completion=5)
    side = turn("side", "r", prompt=2, completion=3, parent=("root", 6), mask=(0, 1, 2))
    rows = read(blobs, [blobs.seal("e", [root, side], {"r": 1.0})], 5)
    assert len(rows) == 1


def test_agent_runs_that_are_not_fed_are_not_trained():
    blobs = Blobs()
    turns = [turn("a", "fed", completion=5), turn("b", "other", completion=7)]
    rows = read(blobs, [blobs.seal("e", turns, {"fed": 1.0})], 5)
    assert tokens_by_run(rows) == {"fed": 5}


def test_tokens_over_the_staleness_bound_and_masked_ones_leave_the_denominator():
    blobs = Blobs()
    mixed = turn("a", "r", completion=6, versions=((3, 2), (4, 4)), mask=(5,))
    episode = blobs.seal("e", [mixed], {"r": 2.0})
    (found,) = read(blobs, [episode], 3, oldest_version=4)
    assert found.row.trained.tolist() == [False] * 4 + [False, False, True, True, True, False]
    assert found.row.advantage[found.row.trained].tolist() == [2.0, 2.0, 2.0]
    assert read(blobs, [episode], 0, oldest_version=5) == []


def test_a_count_that_differs_is_an_error_that_names_both():
    blobs = Blobs()
    with pytest.raises(TrainError, match=r"counted 9 trained tokens.*hold 5"):
        read(blobs, [blobs.seal("e", [turn("a", "r", completion=5)], {"r": 1.0})], 9)


def test_what_cannot_be_replayed_is_refused():
    blobs = Blobs()
    with pytest.raises(TrainError, match=r"top_p=0\.9.*sample with"):
        read(blobs, [blobs.seal("e", [turn("a", "r", top_p=0.9)], {"r": 1.0})], 5)
    untrained = turn("a", "r", top_p=0.9, mask=(0, 1, 2, 3, 4))
    assert read(blobs, [blobs.seal("e", [untrained], {"r": 1.0})], 0) == []


@pytest.mark.parametrize("advantage", [float("nan"), float("inf")])
def test_an_advantage_that_is_no_number_is_refused(advantage):
    blobs = Blobs()
    with pytest.raises(TrainError, match="rewards must be finite"):
        read(blobs, [blobs.seal("e", [turn("a", "r")], {"r": advantage})], 5)


def test_a_blob_that_is_of_another_episode_missing_or_torn_is_refused():
    blobs = Blobs()
    sealed = blobs.seal("e", [turn("a", "r")], {"r": 1.0})
    with pytest.raises(StoreError, match="holds episode e, and not other"):
        read(blobs, [FeedEpisode(episode="other", handle=sealed.handle, runs=sealed.runs)], 5)
    with pytest.raises(StoreError, match="blob 'gone' of episode e cannot be trained on: open it: 'gone'; resume"):
        read(blobs, [FeedEpisode(episode="e", handle="gone", runs=sealed.runs)], 5)
    blobs.held[sealed.handle] = blobs.held[sealed.handle][:-3]
    with pytest.raises(StoreError, match="torn"):
        read(blobs, [sealed], 5)


def test_kv_of_older_weights_is_told_per_token():
    blobs = Blobs()
    old = turn("a", "r", prompt=2, completion=2, kv_oldest_version=3)
    new = turn("b", "r", prompt=1, completion=2, kv_oldest_version=5, parent=("a", 4))
    (found,) = read(blobs, [blobs.seal("e", [old, new], {"r": 1.0})], 4)
    assert np.array_equal(found.kv_oldest_version, [3, 3, 3, 3, 5, 5, 5])
