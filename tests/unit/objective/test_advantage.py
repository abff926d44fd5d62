"""Advantages, by hand."""

import numpy as np
import pytest

from agentrl.objective import advantage_of
from agentrl.objective.advantage import mean_centred, shuffled


def test_default_is_centred_and_divides_by_nothing():
    assert advantage_of("default").of(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert advantage_of("default").of(np.array([4.0, 0.0])) == pytest.approx([2.0, -2.0])


def test_grpo_divides_by_the_sample_standard_deviation():
    # mean 0.5; std with ddof 1 = sqrt(0.5) = 0.70711; 0.5 / (0.70711 + 0.0001) = 0.70701
    assert advantage_of("grpo").of(np.array([1.0, 0.0])) == pytest.approx([0.70701, -0.70701], abs=1e-5)


def test_grpo_of_equal_rewards_is_zero_and_not_nan():
    assert advantage_of("grpo").of(np.array([0.3, 0.3, 0.3])) == pytest.approx([0, 0, 0])


def test_reinforce_needs_no_group_and_compares_nothing():
    rule = advantage_of("reinforce")
    assert rule.of(np.array([0.25])) == pytest.approx([0.25])
    assert (rule.survivors, rule.compares) == (1, False)
    assert (advantage_of("grpo").survivors, advantage_of("grpo").compares) == (2, True)


def test_shuffled_rewards_keep_their_advantages_and_lose_their_owners() -> None:
    judge = shuffled(mean_centred, seed=0)
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    judged = [judge(rewards) for _ in range(40)]
    assert all(sorted(advantages.tolist()) == [-0.25, -0.25, -0.25, 0.75] for advantages in judged)
    assert {int(advantages.argmax()) for advantages in judged} == {0, 1, 2, 3}
