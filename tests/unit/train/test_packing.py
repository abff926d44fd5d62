"""Packing: what must hold for any lengths, and that packed rows score as each does alone."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from agentrl.errors import ConfigError
from agentrl.train import attention
from agentrl.train.attention import segments
from agentrl.train.model import PolicyModel
from agentrl.train.packing import Ragged, micro_batches, pack
from tests.unit.train.models import ragged, reference_logprobs, tiny_llama

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 90))
def test_micro_batches_hold_every_row_once_and_keep_the_budget(lengths, budget):
    batches = micro_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= budget


@given(LENGTHS, st.integers(60, 200))
def test_micro_batches_are_at_most_twice_as_many_as_needed(lengths, budget):
    assert len(micro_batches(lengths, budget)) <= 2 * sum(lengths) / budget + 1


@given(LENGTHS)
def test_buckets_cover_the_row_in_order(lengths):
    buckets = segments(lengths, CPU).buckets
    assert sum(bucket.tokens for bucket in buckets) == sum(lengths)
    assert sum(bucket.sequences for bucket in buckets) == len(lengths)
    first = 0
    for bucket in buckets:
        held = lengths[first : first + bucket.sequences]
        assert (bucket.tokens, bucket.longest) == (sum(held), max(held))
        assert min(held) >= attention.SHORTEST_OF_LONGEST * max(held)
        first += bucket.sequences


@given(st.integers(0, 1000), st.lists(st.integers(2, 30), min_size=1, max_size=6))
def test_predictors_stand_right_before_their_targets(seed, lengths):
    rows = [ragged(n, seed=seed + i) for i, n in enumerate(lengths)]
    packed = pack(rows, CPU)
    assert packed.token_ids[0, packed.predictors + 1].tolist() == packed.targets.tolist()
    assert packed.position[0, packed.predictors + 1].min() > 0
    assert packed.targets.tolist() == [int(token) for row in rows for token in row.token_ids[row.trained]]


def test_tokens_after_the_last_trained_one_are_not_computed():
    row = Ragged(np.arange(6, dtype=np.int32), np.array([0, 1, 0, 1, 0, 0], bool), np.ones(6, np.float32))
    assert pack([row], CPU).token_ids.tolist() == [[0, 1, 2, 3]]


def test_a_trained_token_zero_is_refused():
    with pytest.raises(ValueError, match="nothing predicts it"):
        Ragged(np.zeros(2, np.int32), np.array([True, True]), np.ones(2, np.float32))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize("lengths", [(7,), (9, 9, 9), (2, 40, 17, 18, 5, 40), (30, 28, 27, 26, 3, 2)])
def test_packed_rows_score_as_each_alone(heads, kv_heads, lengths):
    model = tiny_llama(heads=heads, kv_heads=kv_heads)
    rows = [ragged(n, seed=n + i, temperature=0.5 + 0.25 * i) for i, n in enumerate(lengths)]
    expected = torch.cat([reference_logprobs(model, row) for row in rows])
    policy = PolicyModel(model)
    assert_close(policy.logprobs(pack(rows, CPU)).logprobs, expected, atol=1e-5, rtol=0)


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


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Phi3", "Olmo2"])
def test_families_with_full_attention_are_taken(family):
    PolicyModel(of_family(family))


@pytest.mark.parametrize(("family", "because"), [("Mistral", "sliding_window"), ("Gemma2", "softcap"), ("Cohere", "other logprobs")])
def test_what_packing_or_the_head_would_get_wrong_is_refused(family, because):
    with pytest.raises(ConfigError, match=because):
        PolicyModel(of_family(family))
