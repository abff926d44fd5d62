"""What a run writes down of itself, counted by hand."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl.cli.proof import print_proof
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Rejected, Trained
from agentrl.rollout.observer import DropEvent, EpisodeEvent, StepEvent
from agentrl.runtime.config import RunConfig
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.metrics import read_metrics
from agentrl.runtime.record import Recorder
from tests.unit.ledger.build import batch, issued, name


def drop(reason: str, reward: float | None, decile: int) -> DropEvent:
    return DropEvent(episode="e", agent_run="e.main0", reason=reason, reward=reward, sampled_tokens=7, length_decile=decile)


def episode(split: str, **values: Any) -> EpisodeEvent:
    return EpisodeEvent(episode="e", split=split, task_id="t", worker="w", **values)


def recorded(folder: RunFolder) -> Recorder:
    recorder = Recorder(folder.metrics)
    recorder.episode(episode("train", placements={"root": 1, "forked:unproven": 2}, untrainable={"stop": 4}))
    recorder.episode(episode("eval", placements={"forked:tools_changed": 1}, untrainable={"greedy": 100}))
    for event in (drop("equal_rewards", 0.0, 9), drop("equal_rewards", 0.001, 9), drop("equal_rewards", 1.0, 0), drop("stale", None, 9)):
        recorder.drop(event)
    recorder.step(StepEvent(step=1, steps=2, metrics={}))
    recorder.drop(drop("no_reward", None, 3))
    recorder.episode(episode("train", reason="lost"))
    recorder.step(StepEvent(step=2, steps=2, metrics={}))
    recorder.replaced({"temperature": 5})
    recorder.end()
    recorder.close()
    return recorder


def test_drops_forks_and_untrainable_tokens_are_told_by_reason(tmp_path: Path) -> None:
    folder = RunFolder.create("run", runs=tmp_path)
    recorded(folder)
    lines = list(read_metrics(folder.metrics))
    first, second = (line for line in lines if line["kind"] == "step")
    assert first["dropped_runs"] == {"equal_rewards": 3, "stale": 1}
    assert second["dropped_runs"] == {"no_reward": 1}, "since the step before"
    assert (first["untrainable_tokens"], second["untrainable_tokens"]) == ({"stop": 4}, {})
    assert (second["forks"], second["fork_reasons"]) == (3, {"unproven": 2, "tools_changed": 1})
    (drops,) = (line["runs"] for line in lines if line["kind"] == "drops")
    assert [(row["reason"], row["reward"], row["length_decile"], row["count"]) for row in drops] == [
        ("equal_rewards", 1.0, 0, 1),
        ("equal_rewards", 0.0, 9, 2),
        ("no_reward", None, 3, 1),
        ("stale", None, 9, 1),
    ]
    (counts,) = (line for line in lines if line["kind"] == "counts")
    assert counts["rejected"] == {"lost": 1}
    assert counts["untrainable_tokens"] == {"stop": 4}
    assert counts["replaced_wishes"] == {"temperature": 5}


def test_the_proof_says_what_was_left_out_and_why(tmp_path: Path) -> None:
    folder = RunFolder.create("run", runs=tmp_path)
    recorder = recorded(folder)
    with folder.metrics.open("a") as metrics:
        for step, reward in ((0, "0.25"), (4, "0.5"), (4, "0.75")):
            metrics.write(f'{{"kind":"eval","step":{step},"reward":{reward},"stderr":0.1}}\n')
    Ledger.open(folder.ledger).close()
    out = io.StringIO()
    print_proof(Console(file=out, width=200), RunConfig(env={"name": "x"}), folder, recorder, reason="finished")
    shown = out.getvalue()
    assert "agent runs dropped 5 (equal_rewards 3, stale 1, no_reward 1); attempts rejected 1 (lost 1)" in shown
    assert "3 (unproven 2, tools_changed 1)" in shown
    assert "untrainable 4 (stop 4)" in shown
    assert "5 (temperature 5)" in shown
    assert "0.250 ± 0.100 at step 0 → 0.750 ± 0.100 at step 4" in shown, "a resume made the last evaluation anew"


def test_a_run_that_trained_nothing_says_so(tmp_path: Path) -> None:
    folder = RunFolder.create("run", runs=tmp_path)
    recorder = recorded(folder)
    ledger = Ledger.open(folder.ledger)
    ledger.record(issued("t", 0, size=1), Rejected(name("t", 0), "error", "reward: ValueError: boom"))
    ledger.record(batch(ledger, [[]], dropped=(0,)))
    ledger.record(Trained(1))
    ledger.close()
    out = io.StringIO()
    print_proof(Console(file=out, width=200), RunConfig(env={"name": "x"}), folder, recorder, reason="finished")
    assert "NOTHING WAS TRAINED: every agent run was left out" in out.getvalue()
