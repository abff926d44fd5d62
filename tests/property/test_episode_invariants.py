"""The four invariants of the data (docs/architecture.md), for sessions that fork, resample, retry, compact and interleave at random."""

import io
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.episode import (
    EpisodeKey,
    EpisodeRecord,
    Parent,
    Sampling,
    Span,
    TokenTrie,
    Turn,
    read_record,
    read_turns,
    row,
    write_episode,
)

TOKENS = st.integers(0, 30)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[Turn], dict[str, list[int]]]:
    """Turns in the order they were made, and beside them what the engine really saw: each turn's full sequence."""
    turns: list[Turn] = []
    seen: dict[str, list[int]] = {}
    for number in range(draw(st.integers(1, 9))):
        how = draw(st.sampled_from(["continue", "fork", "resample", "compact"])) if turns else "compact"
        parent: Parent | None = None
        if how == "continue":
            last = turns[-1].id
            parent = Parent(last, len(seen[last]))
        elif how == "fork":
            at = draw(st.sampled_from(turns)).id
            parent = Parent(at, draw(st.integers(0, len(seen[at]))))
        elif how == "resample":
            parent = draw(st.sampled_from(turns)).parent
        prefix = seen[parent.turn][: parent.prefix_len] if parent else []
        prompt = draw(st.lists(TOKENS, min_size=0 if prefix else 1, max_size=4))
        completion = draw(st.lists(TOKENS, max_size=5))
        cut = draw(st.integers(0, len(completion)))
        turn = Turn(
            id=f"t{number}",
            agent_run="r",
            parent=parent,
            prompt_ids=np.array(prompt, np.int32),
            completion_ids=np.array(completion, np.int32),
            mask=np.array(draw(st.lists(st.booleans(), min_size=len(completion), max_size=len(completion))), bool),
            sampler_logprobs=-np.arange(len(completion), dtype=np.float32) - 1,
            spans=(Span(number, 0, cut), Span(number + 1, cut, len(completion))),
            kv_oldest_version=number,
            sampling=Sampling(max_tokens=8, temperature=0.5 + number),
            finish_reason="stop",
        )
        turns.append(turn)
        seen[turn.id] = prefix + prompt + completion
    return turns, seen


@given(sessions())
def test_prefix_prompt_completion_is_what_the_engine_saw(session: tuple[list[Turn], dict[str, list[int]]]) -> None:
    turns, seen = session
    trie = TokenTrie(turns)
    for turn in turns:
        assert trie.tokens(turn.id).tolist() == seen[turn.id]
    for path in trie.paths():
        assert path.token_ids().tolist() == seen[path.leaf.id][: len(path)]


@given(sessions())
def test_each_sampled_token_has_exactly_one_owner(session: tuple[list[Turn], dict[str, list[int]]]) -> None:
    turns, _ = session
    owners: Counter[tuple[str, int]] = Counter()
    for path in TokenTrie(turns).paths():
        arrays = row(path, agent_run="r", group="g", policy="policy")
        at = 0
        for segment in path.segments:
            for offset in range(segment.start, segment.stop):
                index = offset - len(segment.turn.prompt_ids)
                if index >= 0 and arrays.owner[at]:
                    owners[segment.turn.id, index] += 1
                elif index < 0:
                    assert not arrays.owner[at], "a prompt token has no owner"
                at += 1
    assert owners == Counter({(turn.id, i): 1 for turn in turns for i in range(len(turn.completion_ids))})


@given(sessions(), st.integers(0, 10))
def test_trained_tokens_have_logprob_temperature_and_a_version_within_the_bound(
    session: tuple[list[Turn], dict[str, list[int]]], oldest: int
) -> None:
    turns, _ = session
    trained = 0
    for path in TokenTrie(turns).paths():
        arrays = row(path, agent_run="r", group="g", policy="policy", advantage=2.0, oldest_version=oldest)
        use = arrays.trained
        trained += int(use.sum())
        assert (arrays.sampler_logprobs[use] < 0).all()
        assert (arrays.policy_version[use] >= oldest).all()
        assert (arrays.advantage[use] == 2.0).all()
        for i in np.flatnonzero(use):
            assert arrays.temperature[i] == 0.5 + int(arrays.turns[arrays.turn[i]][1:])
    assert trained == sum(int((turn.mask & (turn.versions >= oldest)).sum()) for turn in turns)


@given(sessions())
def test_storage_is_linear_in_new_tokens(session: tuple[list[Turn], dict[str, list[int]]]) -> None:
    turns, seen = session
    shared = {turn.id: turn.parent.prefix_len if turn.parent else 0 for turn in turns}
    assert sum(turn.own_len for turn in turns) == sum(len(seen[t]) - shared[t] for t in seen)


@given(sessions())
def test_a_blob_gives_back_the_record_and_every_turn(session: tuple[list[Turn], dict[str, list[int]]]) -> None:
    turns, _ = session
    record = EpisodeRecord(id="e", key=EpisodeKey(0, "task", 1), split="train", env="x", env_version="1", task={"prompt": "p"}, reward=0.5)
    file = io.BytesIO()
    write_episode(file, record, turns)
    file.seek(0)
    assert read_record(file) == record
    for turn, back in zip(turns, read_turns(file), strict=True):
        assert (back.id, back.parent, back.spans, back.sampling) == (turn.id, turn.parent, turn.spans, turn.sampling)
        for name in ("prompt_ids", "completion_ids", "mask", "sampler_logprobs", "versions"):
            assert np.array_equal(getattr(back, name), getattr(turn, name))
