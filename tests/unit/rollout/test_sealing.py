"""What is told of a sealed episode."""

from agentrl.episode import EpisodeKey, EpisodeRecord, Sealed, TokenStats
from agentrl.rollout.sealing import _event


def test_an_episodes_event_adds_up_its_agent_runs() -> None:
    record = EpisodeRecord(id="e", key=EpisodeKey(0, "t", 0), split="train", env="x", env_version="1", task={}, reward=0.5)
    runs = {
        "e.a0": TokenStats(turns=2, sampled=10, versions={3: 6}, untrainable={"stop": 1, "abort": 3}, placements={"root": 1, "exact": 1}),
        "e.b1": TokenStats(turns=1, sampled=4, versions={3: 2}, untrainable={"stop": 2}, placements={"root": 1}),
    }
    event = _event("w", record, Sealed(episode="e", handle="h", nbytes=1, runs=runs))
    assert (event.turns, event.sampled_tokens) == (3, 14)
    assert event.placements == {"root": 2, "exact": 1}
    assert event.untrainable == {"stop": 3, "abort": 3}
