"""docs/metrics.md speaks of every number that a run writes down."""

import json
import re
from pathlib import Path

import msgspec

from agentrl.rollout.observer import BatchEvent, DropEvent, EpisodeEvent, EvaluationEvent, StepEvent, UpdateEvent, WorkerEvent
from agentrl.runtime.record import Recorder
from tests.unit.train.feed import Blobs, eight_episodes, one_batch
from tests.unit.train.test_trainer import trainer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def trainer_metrics() -> dict[str, float]:
    blobs = Blobs()
    episodes, tokens = eight_episodes(blobs)
    batch = one_batch(1, episodes, tokens)
    of_loop = dict.fromkeys(("wait_s", "published_version", "snapshot_s", "publish_s"), 0.0)
    return trainer(blobs).update(batch.minibatches[0], batch) | of_loop


def whole_run(path: Path) -> set[str]:
    """Keys and kinds of a file with a line of every kind."""
    recorder = Recorder(path)
    recorder.control(0.5)
    recorder.note("text")
    recorder.batch(_any(BatchEvent))
    recorder.step(StepEvent(step=0, steps=1, metrics=trainer_metrics()))
    recorder.episode(EpisodeEvent(episode="e", split="train", task_id="t", worker="w", reason="error"))
    recorder.drop(_any(DropEvent))
    recorder.evaluation(_any(EvaluationEvent))
    recorder.update(UpdateEvent(version=1, engine="engine", outcome="served"))
    recorder.worker(WorkerEvent(worker="w", what="frozen"))
    recorder.end()
    recorder.close()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    of_drops = {key for line in lines if line["kind"] == "drops" for row in line["runs"] for key in row}
    return {key for line in lines for key in line} | of_drops | {line["kind"] for line in lines}


def _any(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """An event of zeros."""
    zeros = {name: (0, 0) if name == "versions" else 0 for name in kind.__struct_fields__}
    return kind(**zeros)


def test_every_metric_is_explained(tmp_path: Path) -> None:
    explained = set(re.findall(r"`(\w+)`|kind \"(\w+)\"", PAGE.read_text(encoding="utf-8")))
    names = {name for pair in explained for name in pair}
    missing = sorted(whole_run(tmp_path / "metrics.jsonl") - names)
    assert not missing, f"docs/metrics.md does not explain {', '.join(missing)}"
