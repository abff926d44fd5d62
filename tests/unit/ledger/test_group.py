"""Groups worked by hand."""

import numpy as np
import pytest

from agentrl.ledger import Ledger, judge
from agentrl.ledger.entry import Rejected
from agentrl.objective import advantage_of
from tests.unit.ledger.build import issued, name, score, scored_group, scored_run

DEFAULT = advantage_of("default")


def advantages(ledger: Ledger, number: int) -> dict[str, float]:
    kept = judge(ledger.state.groups[number], DEFAULT).kept
    return {episode: runs[0].advantage for episode, runs in kept.items()}


def test_rewards_less_their_mean() -> None:
    ledger = Ledger.in_memory()
    number = scored_group(ledger, "t", [0.0, 0.0, 0.0, 1.0])
    assert advantages(ledger, number) == {name("t", 0): -0.25, name("t", 1): -0.25, name("t", 2): -0.25, name("t", 3): 0.75}


def test_infrastructure_rejections_leave_the_baseline() -> None:
    ledger = Ledger.in_memory()
    ledger.record(*(issued("t", member, size=3) for member in range(3)))
    score(ledger, name("t", 0), scored_run("a", 1.0))
    score(ledger, name("t", 2), scored_run("b", 0.0))
    group = ledger.state.groups[0]
    assert not group.closed
    ledger.record(Rejected(name("t", 1), "frozen"))
    assert group.closed
    assert advantages(ledger, 0) == {name("t", 0): 0.5, name("t", 2): -0.5}


def test_one_survivor_is_dropped() -> None:
    ledger = Ledger.in_memory()
    ledger.record(issued("t", 0, size=2), issued("t", 1, size=2))
    score(ledger, name("t", 0), scored_run("a", 1.0))
    ledger.record(Rejected(name("t", 1), "error"))
    judgement = judge(ledger.state.groups[0], DEFAULT)
    assert not judgement.kept
    assert [drop.reason for drop in judgement.dropped] == ["few_survivors"]


def test_equal_rewards_are_dropped_with_their_value() -> None:
    ledger = Ledger.in_memory()
    number = scored_group(ledger, "t", [1.0, 1.0])
    judgement = judge(ledger.state.groups[number], DEFAULT)
    assert not judgement.kept
    assert [(drop.reason, drop.run.reward) for drop in judgement.dropped] == [("equal_rewards", 1.0)] * 2
    assert judgement.reason(name("t", 0)) == "equal_rewards"


def test_reinforce_keeps_a_single_member() -> None:
    ledger = Ledger.in_memory()
    number = scored_group(ledger, "t", [0.5])
    kept = judge(ledger.state.groups[number], advantage_of("reinforce")).kept
    assert kept[name("t", 0)][0].advantage == 0.5


def test_a_masked_reward_leaves_the_baseline() -> None:
    ledger = Ledger.in_memory()
    number = scored_group(ledger, "t", [0.0, None, 1.0])
    assert advantages(ledger, number) == {name("t", 0): -0.5, name("t", 2): 0.5}
    assert [drop.reason for drop in judge(ledger.state.groups[number], DEFAULT).dropped] == ["no_reward"]


def test_a_stale_member_stays_in_the_baseline_but_is_not_fed() -> None:
    ledger = Ledger.in_memory()
    number = scored_group(ledger, "t", [0.0, 0.0, 1.0])
    ledger.record(Rejected(name("t", 2), "stale"))
    assert advantages(ledger, number) == {name("t", 0): pytest.approx(-1 / 3), name("t", 1): pytest.approx(-1 / 3)}


def test_agent_runs_are_compared_within_their_own_group_key() -> None:
    """Two episodes, each with one proposer and two solvers: one entry per agent run."""
    ledger = Ledger.in_memory()
    ledger.record(issued("t", 0, size=2), issued("t", 1, size=2))
    for member, (proposer, solvers) in enumerate([(0.0, (1.0, 0.0)), (0.0, (0.0, 0.0))]):
        runs = [scored_run(f"p{member}", proposer, agent="proposer")]
        runs += [scored_run(f"s{member}{at}", reward, agent="solver") for at, reward in enumerate(solvers)]
        score(ledger, name("t", member), *runs)
    judgement = judge(ledger.state.groups[0], DEFAULT)
    assert {drop.run.group for drop in judgement.dropped} == {"proposer"}
    kept = {entry.run.agent_run: entry.advantage for runs in judgement.kept.values() for entry in runs}
    assert kept == {"s00/solver": 0.75, "s01/solver": -0.25, "s10/solver": -0.25, "s11/solver": -0.25}


def test_advantages_sum_to_zero_whatever_the_rewards() -> None:
    ledger = Ledger.in_memory()
    rewards = np.random.default_rng(0).normal(size=16).tolist()
    number = scored_group(ledger, "t", rewards)
    assert sum(advantages(ledger, number).values()) == pytest.approx(0.0, abs=1e-12)
