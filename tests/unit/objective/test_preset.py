"""Every preset against its formula written out, and by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from agentrl.objective import ObjectiveConfig
from agentrl.objective.aggregate import run_mean, token_mean
from agentrl.objective.gate import Clip
from agentrl.objective.preset import objective
from agentrl.objective.tokens import Tokens

RUNS = ["a", "a", "b", "b", "b", "b"]
COUNTS = {"a": 2, "b": 4}


def tokens(weights: dict[str, float], pi: torch.Tensor) -> Tokens:
    mu = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.5, -0.1])
    advantage = torch.tensor([0.5, 0.5, -1.5, -1.5, -1.5, -1.5])
    return Tokens(trainer_logprobs=pi, sampler_logprobs=mu, advantage=advantage, weight=torch.tensor([weights[run] for run in RUNS]))


def some_pi() -> torch.Tensor:
    return torch.tensor([-0.5, -2.1, -0.4, -3.9, -1.5, -0.3], requires_grad=True)


def default_reference(pi, mu, advantage):
    """-1/N Σ_t min(ρ_t A_t, clip(ρ_t, 0.8, 1.28) A_t)"""
    total = 0.0
    for p, m, a in zip(pi, mu, advantage, strict=True):
        ratio = torch.exp(p - m)
        total = total - torch.min(ratio * a, torch.clip(ratio, 0.8, 1.28) * a)
    return total / len(pi)


def grpo_reference(pi, mu, advantage):
    """-1/G Σ_i 1/|o_i| Σ_t min(ρ_it A_i, clip(ρ_it, 0.8, 1.2) A_i)"""
    total = 0.0
    for output in ([0, 1], [2, 3, 4, 5]):
        inner = 0.0
        for t in output:
            ratio = torch.exp(pi[t] - mu[t])
            inner = inner + torch.min(ratio * advantage[t], torch.clip(ratio, 0.8, 1.2) * advantage[t])
        total = total + inner / len(output)
    return -total / 2


@pytest.mark.parametrize(
    ("preset", "reference"), [("default", default_reference), ("grpo", grpo_reference), ("reinforce", default_reference)]
)
def test_preset_equals_its_formula_and_gradient(preset, reference):
    ours, pi, theirs = objective(ObjectiveConfig(preset=preset)), some_pi(), some_pi()
    seen = tokens(ours.aggregate(COUNTS), pi)
    loss, expected = ours.loss(seen).value, reference(theirs, seen.sampler_logprobs, seen.advantage)
    loss.backward()
    expected.backward()
    assert_close(loss, expected)
    assert_close(pi.grad, theirs.grad)


def test_reinforce_on_policy_has_the_gradient_of_reinforce():
    ours = objective(ObjectiveConfig(preset="reinforce"))
    pi = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.5, -0.1], requires_grad=True)
    ours.loss(tokens(ours.aggregate(COUNTS), pi)).value.backward()
    assert_close(pi.grad, -torch.tensor([0.5, 0.5, -1.5, -1.5, -1.5, -1.5]) / 6)


def test_clip_by_hand():
    ratio, advantage = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1]), torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    term, closed = Clip(low=0.2, high=0.28)(ratio, advantage)
    assert_close(term, torch.tensor([1.28, -1.5, 0.5, -0.8, 2.2]))
    assert closed.tolist() == [True, False, False, True, False]


def test_closed_gates_are_those_without_gradient():
    ours, pi = objective(ObjectiveConfig()), some_pi()
    loss = ours.loss(tokens(ours.aggregate(COUNTS), pi))
    loss.value.backward()
    assert loss.closed.tolist() == (pi.grad == 0).tolist() == [True, False, False, True, False, False]


def test_own_clip_bounds_win_over_the_preset():
    assert objective(ObjectiveConfig(preset="grpo", clip_high=0.5)).gate == Clip(low=0.2, high=0.5)


def test_aggregates_weigh_tokens_or_runs_the_same_and_sum_to_one():
    assert token_mean({"a": 1, "b": 3, "none": 0}) == {"a": 0.25, "b": 0.25}
    assert run_mean({"a": 1, "b": 4, "none": 0}) == {"a": 0.5, "b": 0.125}
    assert math.isclose(sum(COUNTS[run] * weight for run, weight in run_mean(COUNTS).items()), 1)
