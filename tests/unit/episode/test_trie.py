"""Paths and owners, worked by hand."""

import numpy as np
import pytest

from agentrl.episode import Parent, Sampling, Span, TokenTrie, Turn, row


def turn(name: str, parent: Parent | None, prompt: list[int], completion: list[int], *, version: int = 0, temperature: float = 1.0) -> Turn:
    n = len(completion)
    return Turn(
        id=name,
        agent_run="r",
        parent=parent,
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(completion, np.int32),
        mask=np.full(n, temperature > 0),
        sampler_logprobs=np.full(n, -1.0, np.float32),
        spans=(Span(version, 0, n),),
        kv_oldest_version=version,
        sampling=Sampling(max_tokens=9, temperature=temperature),
        finish_reason="stop",
    )


def test_a_conversation_is_one_path() -> None:
    trie = TokenTrie([turn("a", None, [1, 2], [3, 4]), turn("b", Parent("a", 4), [5], [6])])
    (path,) = trie.paths()
    assert path.token_ids().tolist() == [1, 2, 3, 4, 5, 6]
    arrays = row(path, agent_run="r", group="g", policy="policy", advantage=0.5)
    assert arrays.owner.tolist() == [False, False, True, True, False, True]
    assert arrays.advantage.tolist() == [0, 0, 0.5, 0.5, 0, 0.5]


def test_a_fork_inside_a_turn_stores_only_what_is_new_and_shares_the_rest() -> None:
    trie = TokenTrie([turn("a", None, [1], [2, 3, 4]), turn("b", Parent("a", 2), [9], [8])])
    whole, fork = trie.paths()
    assert whole.token_ids().tolist() == [1, 2, 3, 4]
    assert fork.token_ids().tolist() == [1, 2, 9, 8]
    rows = [row(p, agent_run="r", group="g", policy="policy") for p in (whole, fork)]
    assert rows[0].owner.tolist() == [False, True, True, True]
    assert rows[1].owner.tolist() == [False, False, False, True], "token 2 belongs to the first path"


def test_a_path_that_goes_further_into_a_turn_owns_the_rest_of_it() -> None:
    trie = TokenTrie([turn("a", None, [1], [2, 3]), turn("early", Parent("a", 2), [9], [8]), turn("late", Parent("a", 3), [7], [6])])
    early, late = trie.paths()
    assert early.token_ids().tolist() == [1, 2, 9, 8]
    assert late.token_ids().tolist() == [1, 2, 3, 7, 6]
    arrays = row(late, agent_run="r", group="g", policy="policy")
    assert arrays.owner.tolist() == [False, False, True, False, True]


def test_a_parent_point_before_the_named_turn_belongs_to_its_ancestor() -> None:
    trie = TokenTrie([turn("a", None, [1, 2], [3]), turn("b", Parent("a", 3), [4], [5]), turn("c", Parent("b", 2), [6], [7])])
    assert trie.tokens("c").tolist() == [1, 2, 6, 7]
    assert [p.token_ids().tolist() for p in trie.paths()] == [[1, 2, 3, 4, 5], [1, 2, 6, 7]]


def test_over_bound_tokens_are_masked_and_the_rest_of_the_turn_is_kept() -> None:
    mixed = turn("a", None, [1], [2, 3], version=0)
    object.__setattr__(mixed, "versions", np.array([3, 5]))
    (path,) = TokenTrie([mixed]).paths()
    arrays = row(path, agent_run="r", group="g", policy="policy", advantage=1.0, oldest_version=4)
    assert arrays.trained.tolist() == [False, False, True]


def test_a_long_chain_has_one_path_and_needs_no_recursion() -> None:
    turns = [turn("t0", None, [0], [1])]
    for i in range(1, 3000):
        turns.append(turn(f"t{i}", Parent(f"t{i - 1}", 2 * i), [0], [1]))
    (path,) = TokenTrie(turns).paths()
    assert len(path) == 6000


def test_unknown_parents_are_refused() -> None:
    with pytest.raises(ValueError, match="parent point"):
        TokenTrie([turn("a", Parent("gone", 0), [1], [2])])
    with pytest.raises(ValueError, match="parent point"):
        TokenTrie([turn("a", None, [1], [2]), turn("b", Parent("a", 3), [1], [2])])


def test_a_trained_token_without_a_version_or_a_logprob_is_refused() -> None:
    good = {"id": "a", "agent_run": "r", "parent": None, "prompt_ids": np.array([1], np.int32), "completion_ids": np.array([2], np.int32)}
    sampled = {"kv_oldest_version": 0, "finish_reason": "stop", "mask": np.array([True])}
    with pytest.raises(ValueError, match="lacks its version"):
        Turn(**good, **sampled, sampler_logprobs=np.zeros(1, np.float32), spans=(), sampling=Sampling(max_tokens=1))
    greedy = Sampling(max_tokens=1, temperature=0)
    with pytest.raises(ValueError, match="greedy"):
        Turn(**good, **sampled, sampler_logprobs=np.zeros(1, np.float32), spans=(Span(0, 0, 1),), sampling=greedy)
