"""The optimizer update against references written out, and what must not change it."""

import dataclasses

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from agentrl.episode import read_record, read_turns
from agentrl.errors import TrainError
from agentrl.objective import ObjectiveConfig
from agentrl.objective.preset import objective
from agentrl.train.config import TrainConfig
from agentrl.train.model import PolicyModel
from agentrl.train.trainer import Trainer
from tests.unit.train.feed import Blobs, eight_episodes, one_batch, turn
from tests.unit.train.models import tiny_llama

CONFIG = TrainConfig(lr=1e-2, grad_clip=0.0, steps=10)
SAME = ("loss", "grad_norm", "clip_fraction", "gap_nats", "kl_k3", "entropy", "gap_nats_max", "row_tokens")
"""Metrics that no cut into micro-batches may change."""


def trainer(blobs: Blobs, *, preset: str = "default", held_version: int | None = 0, **changes) -> Trainer:
    return Trainer(
        PolicyModel(tiny_llama()),
        objective(ObjectiveConfig(preset=preset)),
        replace(CONFIG, **changes),
        blobs.open,
        held_version=held_version,
    )


def weights(of: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in of.policy.named_parameters()}


def reference_loss(model, blobs, episodes):
    """-1/N Σ_t min(ρ A, clip(ρ, 0.8, 1.28) A), one episode after the other, whole logits, plain log_softmax."""
    terms = []
    for episode in episodes:
        file = blobs.open(episode.handle)
        read_record(file)
        history, advantage = np.empty(0, np.int64), episode.runs[0].advantage
        for made in read_turns(file):
            ids = torch.from_numpy(np.concatenate([history, made.prompt_ids, made.completion_ids]))
            n = len(made.completion_ids)
            pi = model(input_ids=ids[None]).logits[0, -n - 1 : -1].log_softmax(-1).gather(1, ids[-n:, None])[:, 0]
            ratio = (pi - torch.tensor(made.sampler_logprobs)).exp()
            terms.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
            history = ids.numpy()
    return -torch.cat(terms).mean()


def test_one_update_equals_the_reference_loss_and_plain_adamw():
    blobs = Blobs()
    episodes, tokens = eight_episodes(blobs)
    model = tiny_llama()
    expected = reference_loss(model, blobs, episodes)
    expected.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0).step()
    ours = trainer(blobs)
    metrics = ours.update(one_batch(1, episodes, tokens).minibatches[0], one_batch(1, episodes, tokens))
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    for name, value in model.named_parameters():
        # Adam's first step is lr · sign(g) wherever |g| is well above eps.
        assert_close(dict(ours.policy.named_parameters())[name], value, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("preset", ["default", "grpo"])
def test_cutting_into_micro_batches_changes_neither_loss_nor_gradient(preset):
    blobs = Blobs()
    episodes, tokens = eight_episodes(blobs)
    batch = one_batch(1, episodes, tokens)
    seen = []
    for budget in (1, 40, 100, 10_000):
        ours = trainer(blobs, preset=preset, max_tokens_per_microbatch=budget)
        metrics = ours.update(batch.minibatches[0], batch)
        seen.append({name: metrics[name] for name in SAME})
    for other in seen[1:]:
        assert other == pytest.approx(seen[0], rel=1e-4, abs=1e-6)


def test_a_group_computes_its_prompt_once_and_learns_the_same():
    blobs = Blobs()
    prompt = turn("p", "r", prompt=20).prompt_ids
    members = [dataclasses.replace(turn(f"t{i}", f"r{i}", seed=i), prompt_ids=prompt) for i in range(3)]
    episodes = [blobs.seal(f"e{i}", [made], {f"r{i}": 1.0 - i}) for i, made in enumerate(members)]
    batch = one_batch(1, episodes, 15)
    # The last token of each row is only predicted: 24 are read, of which the first 20 are the prompt.
    together, apart = (trainer(blobs, max_tokens_per_microbatch=budget).update(batch.minibatches[0], batch) for budget in (1000, 1))
    assert (together["packed_tokens"], apart["packed_tokens"], together["row_tokens"]) == (20 + 3 * 4, 3 * 24, 3 * 25)
    assert [together[name] for name in SAME] == pytest.approx([apart[name] for name in SAME], rel=1e-4, abs=1e-6)


def test_a_turn_that_one_path_trains_and_another_only_reads_is_computed_once():
    blobs = Blobs()
    turns = [
        turn("a", "r", prompt=20, completion=6),
        turn("b", "r", prompt=3, completion=4, seed=1, parent=("a", 26)),
        turn("c", "r", prompt=3, completion=4, seed=2, parent=("a", 22), temperature=0.5),
    ]
    batch = one_batch(1, [blobs.seal("e", turns, {"r": 0.5})], 6 + 4 + 4)
    together, apart = (trainer(blobs, max_tokens_per_microbatch=budget).update(batch.minibatches[0], batch) for budget in (1000, 1))
    assert (together["packed_tokens"], apart["packed_tokens"]) == (22 + 10 + 6, 32 + 28)
    assert [together[name] for name in SAME] == pytest.approx([apart[name] for name in SAME], rel=1e-4, abs=1e-6)


def test_learning_rate_zero_leaves_the_weights_bit_equal():
    blobs = Blobs()
    episodes, tokens = eight_episodes(blobs)
    ours = trainer(blobs, lr=0.0, weight_decay=0.1)
    before = weights(ours)
    batch = one_batch(1, episodes, tokens)
    metrics = ours.update(batch.minibatches[0], batch)
    assert metrics["grad_norm"] > 0
    assert all(torch.equal(before[name].view(torch.int32), value.view(torch.int32)) for name, value in weights(ours).items())
    assert ours.held_version == 0


def test_good_tokens_grow_likelier_and_bad_ones_less():
    blobs = Blobs()
    good = blobs.seal("good", [turn("a", "r1", seed=1)], {"r1": 1.0})
    bad = blobs.seal("bad", [turn("b", "r2", seed=2)], {"r2": -1.0})
    ours = trainer(blobs)
    losses = []
    for step in range(1, 6):
        batch = one_batch(step, [good, bad], 10)
        losses.append(ours.update(batch.minibatches[0], batch)["loss"])
    assert losses[-1] < losses[0]


def test_a_step_out_of_order_is_refused():
    blobs = Blobs()
    batch = one_batch(3, [], 0)
    with pytest.raises(TrainError, match="step 3 after step 0"):
        trainer(blobs).update(batch.minibatches[0], batch)


def test_a_step_without_a_trainable_token_changes_nothing_and_counts():
    blobs = Blobs()
    ours = trainer(blobs, weight_decay=0.1)
    before = weights(ours)
    batch = one_batch(1, [blobs.seal("e", [turn("a", "r")], {"r": 1.0})], 0, oldest_version=1)
    metrics = ours.update(batch.minibatches[0], batch)
    assert (ours.step, metrics["trained_tokens"]) == (1, 0)
    assert all(torch.equal(before[name], value) for name, value in weights(ours).items())


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change():
    blobs = Blobs()
    ours = trainer(blobs)
    before = weights(ours)
    batch = one_batch(1, [blobs.seal("e", [turn("a", "r")], {"r": 3e38})], 5)
    with pytest.raises(TrainError, match="left as they were"):
        ours.update(batch.minibatches[0], batch)
    assert all(torch.equal(before[name], value) for name, value in weights(ours).items())


def test_the_gradient_is_clipped_to_its_norm_as_a_whole():
    blobs = Blobs()
    episodes, tokens = eight_episodes(blobs)
    batch = one_batch(1, episodes, tokens)
    ours = trainer(blobs, grad_clip=1e-3)
    norms = []
    gradients = [p for _, p in ours.policy.named_parameters()]
    ours.optimizer.register_step_pre_hook(lambda *_: norms.append(torch.nn.utils.get_total_norm([p.grad for p in gradients]).item()))
    assert ours.update(batch.minibatches[0], batch)["grad_norm"] > 1e-3
    assert norms == pytest.approx([1e-3], rel=1e-3)


def test_the_gap_at_staleness_0_speaks_only_of_the_held_weights():
    blobs = Blobs()
    episodes = [
        blobs.seal("fresh", [turn("a", "r1", completion=4, versions=((7, 4),), kv_oldest_version=7)], {"r1": 1.0}),
        blobs.seal("kept", [turn("b", "r2", completion=3, versions=((7, 3),), kv_oldest_version=6)], {"r2": -1.0}),
        blobs.seal("old", [turn("c", "r3", completion=2, versions=((5, 2),), kv_oldest_version=5)], {"r3": -1.0}),
    ]
    ours = trainer(blobs, held_version=7)
    batch = one_batch(1, episodes, 9, policy_version=8)
    metrics = ours.update(batch.minibatches[0], batch)
    assert metrics["fresh_tokens"] == 4
    assert metrics["gap_nats_staleness_0_max"] <= metrics["gap_nats_max"]
    assert metrics["staleness_max"] == 3
    assert metrics["staleness_mean"] == pytest.approx((4 * 1 + 3 * 1 + 2 * 3) / 9)
    again = one_batch(2, episodes, 9, policy_version=8)
    assert "gap_nats_staleness_0" not in ours.update(again.minibatches[0], again)


def test_gap_and_kl_are_zero_when_the_sampler_is_the_trainer():
    blobs = Blobs()
    model = tiny_llama()
    made = turn("a", "r", versions=((0, 5),))
    ids = torch.from_numpy(np.concatenate([made.prompt_ids, made.completion_ids]).astype(np.int64))
    mu = model(input_ids=ids[None]).logits[0, 3:8].log_softmax(-1).gather(1, ids[4:, None])[:, 0].detach().numpy()
    exact = dataclasses.replace(turn("a", "r"), sampler_logprobs=mu)
    batch = one_batch(1, [blobs.seal("e", [exact], {"r": 1.0})], 5)
    metrics = trainer(blobs).update(batch.minibatches[0], batch)
    assert metrics["gap_nats_staleness_0_max"] < 1e-5
    assert metrics["kl_k3"] == pytest.approx(0, abs=1e-8)
    assert metrics["loss"] == pytest.approx(-1.0, abs=1e-5)
