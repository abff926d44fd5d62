"""Packing: what must hold for any lengths, and that packed rows score as each does alone."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from agentrl.errors import ConfigError
from agentrl.train import attention
from agentrl.train.attention import segments
from agentrl.train.forest import Stretch, grow
from agentrl.train.model import PolicyModel
from agentrl.train.packing import Ragged, pack
from tests.unit.train.models import group, ragged, reference_logprobs, tiny_llama
from tests.unit.train.test_forest import TWIGS
from tests.unit.train.test_forest import arrays as rows_of

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=30)


@given(LENGTHS)
def test_buckets_cover_the_row_in_order(lengths):
    laid = segments([Stretch(row=i, start=0, stop=n, parent=None) for i, n in enumerate(lengths)], CPU)
    ordered = [lengths[index] for index in laid.order]
    assert sorted(laid.order) == list(range(len(lengths)))
    first = 0
    for bucket in laid.buckets:
        held = ordered[first : first + bucket.sequences]
        assert (bucket.tokens, bucket.longest, bucket.reads) == (sum(held), max(held), None)
        assert min(held) >= attention.SHORTEST_OF_LONGEST * max(held) - attention.SLACK
        first += bucket.sequences
    assert first == len(lengths)


@given(TWIGS)
def test_a_stretch_reads_its_path(rows):
    forest = grow(rows_of(rows), 1)
    laid = segments(forest.stretches, CPU)
    packed = np.concatenate([rows[s.row][s.start : s.stop] for s in (forest.stretches[index] for index in laid.order)])
    assert [packed[laid.paths[end]].tolist() for end in forest.ends] == rows
    at = laid.varlen
    keys = np.arange(len(packed)) if at.keys is None else at.keys.numpy()
    for index, key, query in zip(laid.order, pairwise(at.key_offsets.tolist()), pairwise(at.query_offsets.tolist()), strict=True):
        assert keys[slice(*key)].tolist() == laid.paths[index].tolist()
        assert laid.paths[index][-len(forest.stretches[index]) :].tolist() == list(range(*query))


@given(st.integers(0, 1000), st.lists(st.integers(2, 30), min_size=1, max_size=6))
def test_predictors_stand_right_before_their_targets(seed, lengths):
    rows = [ragged(n, seed=seed + i) for i, n in enumerate(lengths)]
    packed = pack(rows, CPU)
    assert packed.position[0, packed.predictors].tolist() == [at - 1 for row in rows for at in np.flatnonzero(row.trained)]
    assert packed.token_ids[0, packed.predictors].tolist() == [row.token_ids[at - 1] for row in rows for at in np.flatnonzero(row.trained)]
    assert packed.targets.tolist() == [int(token) for row in rows for token in row.token_ids[row.trained]]


def test_tokens_from_the_last_trained_one_on_are_not_computed():
    row = Ragged(np.arange(6, dtype=np.int32), np.array([0, 1, 0, 1, 0, 0], bool), np.ones(6, np.float32))
    assert pack([row], CPU).token_ids.tolist() == [[0, 1, 2]]


def test_a_trained_token_zero_is_refused():
    with pytest.raises(ValueError, match="nothing predicts it"):
        Ragged(np.zeros(2, np.int32), np.array([True, True]), np.ones(2, np.float32))


def test_a_row_without_a_trained_token_is_refused():
    with pytest.raises(ValueError, match="nothing to score"):
        Ragged(np.zeros(2, np.int32), np.zeros(2, bool), np.ones(2, np.float32))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize("lengths", [(7,), (9, 9, 9), (2, 40, 17, 18, 5, 40), (30, 28, 27, 26, 3, 2)])
def test_packed_rows_score_as_each_alone(heads, kv_heads, lengths):
    model = tiny_llama(heads=heads, kv_heads=kv_heads)
    rows = [ragged(n, seed=n + i, temperature=0.5 + 0.25 * i) for i, n in enumerate(lengths)]
    expected = torch.cat([reference_logprobs(model, row) for row in rows])
    policy = PolicyModel(model)
    assert_close(policy.logprobs(pack(rows, CPU)).logprobs, expected, atol=1e-5, rtol=0)


@st.composite
def tries(draw) -> list[Ragged]:
    """Rows of two letters, each with its own trained tokens and temperature: what one row trains is context in another."""
    rows = []
    for letters in draw(TWIGS.filter(lambda rows: all(len(row) > 1 for row in rows))):
        trained = np.array([False, *(draw(st.booleans()) for _ in letters[2:]), True])
        rows.append(Ragged(np.array(letters, np.int32), trained, np.full(len(letters), draw(st.sampled_from([0.5, 1.0, 2.0])), np.float32)))
    return rows


@settings(max_examples=40, deadline=None)
@given(tries(), st.sampled_from([1, 4]), st.sampled_from([1, 2, 4]))
def test_any_trie_scores_as_each_row_alone(rows, least_shared, kv_heads):
    model = tiny_llama(kv_heads=kv_heads)
    expected = torch.cat([reference_logprobs(model, row) for row in rows])
    policy = PolicyModel(model)
    assert_close(policy.logprobs(pack(rows, CPU, least_shared=least_shared)).logprobs, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_gradients_of_rows_that_share_are_those_of_each_alone(kv_heads, checkpointing):
    rows = [*group(40, (30, 12, 12, 11, 1, 3)), *group(25, (40, 2), seed=1), ragged(33), ragged(3)]
    weights = torch.randn(sum(int(row.trained.sum()) for row in rows), generator=torch.Generator().manual_seed(0))
    plain = tiny_llama(kv_heads=kv_heads)
    (torch.cat([reference_logprobs(plain, row) for row in rows]) * weights).sum().backward()
    policy = PolicyModel(tiny_llama(kv_heads=kv_heads), gradient_checkpointing=checkpointing)
    packed = pack(rows, CPU)
    assert packed.token_ids.numel() < sum(len(row.context) for row in rows) - 5 * 40 - 25
    (policy.logprobs(packed).logprobs * weights).sum().backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in policy.named_parameters():
        assert_close(parameter.grad, theirs[name].grad, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_packed_gradients_are_those_of_each_alone(tied, checkpointing):
    rows = [ragged(n, seed=n) for n in (33, 12, 11, 10, 4)]
    plain = tiny_llama(tied=tied)
    sum(reference_logprobs(plain, row).sum() for row in rows).backward()
    policy = PolicyModel(tiny_llama(tied=tied), gradient_checkpointing=checkpointing)
    policy.logprobs(pack(rows, CPU)).logprobs.sum().backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in policy.named_parameters():
        assert_close(parameter.grad, theirs[name].grad, atol=2e-4, rtol=1e-4)


def test_bfloat16_computes_in_it_over_fp32_weights_and_gradients():
    rows = [ragged(n, seed=n) for n in (20, 15)]
    expected = torch.cat([reference_logprobs(tiny_llama(), row) for row in rows])
    policy = PolicyModel(tiny_llama(), dtype="bfloat16")
    got = policy.logprobs(pack(rows, CPU)).logprobs
    got.sum().backward()
    assert_close(got, expected, atol=0.2, rtol=0)
    assert {parameter.dtype for _, parameter in policy.named_parameters()} == {torch.float32}
    assert {parameter.grad.dtype for _, parameter in policy.named_parameters()} == {torch.float32}


def test_an_architecture_that_packing_would_change_is_refused(monkeypatch):
    monkeypatch.setattr(attention, "scaled_dot_product_attention", lambda q, k, v, **kwargs: q)
    with pytest.raises(ConfigError, match="other logprobs on packed rows"):
        PolicyModel(tiny_llama())


def of_family(family: str) -> transformers.PreTrainedModel:
    config = getattr(transformers, f"{family}Config")(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return getattr(transformers, f"{family}ForCausalLM")(config)


def test_an_architecture_that_sharing_alone_would_change_is_refused(monkeypatch):
    monkeypatch.setattr(attention, "_read", lambda row, reads, sequences: row[: reads.longest].expand(sequences, -1, -1, -1))
    with pytest.raises(ConfigError, match="other logprobs on packed rows"):
        PolicyModel(tiny_llama())


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Phi3", "Olmo2"])
def test_families_with_full_attention_are_taken(family):
    PolicyModel(of_family(family))


@pytest.mark.parametrize(("family", "because"), [("Mistral", "sliding_window"), ("Gemma2", "softcap"), ("Cohere", "other logprobs")])
def test_what_packing_or_the_head_would_get_wrong_is_refused(family, because):
    with pytest.raises(ConfigError, match=because):
        PolicyModel(of_family(family))
