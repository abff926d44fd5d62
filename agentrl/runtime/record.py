"""The run's written memory: events to metrics.jsonl, and the sums that the proof at the end speaks of."""

import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from agentrl.rollout.observer import (
    BatchEvent,
    DropEvent,
    EpisodeEvent,
    EvaluationEvent,
    StepEvent,
    UpdateEvent,
    WorkerEvent,
)
from agentrl.runtime.metrics import MetricsLog
from agentrl.runtime.observe import Load, RunObserver

FORKED = "forked:"


class Drop(NamedTuple):
    """What dropped agent runs are counted by: whether dropping favours short or poor episodes must be seen."""

    reason: str
    reward: float | None
    """To two decimals."""
    length_decile: int


class Recorder(RunObserver):
    """Writes every event that says something about the run; keeps counts, of this process: a resume starts them anew."""

    def __init__(self, path: Path) -> None:
        self._log = MetricsLog(path)
        self._batches: dict[int, BatchEvent] = {}
        self._load = Load(engine_busy=0, sampled_per_s=0, running=0, waiting=0, served_version=0, published_version=0)
        self.placements: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.drops: Counter[Drop] = Counter()
        self.untrainable: Counter[str] = Counter()
        """Sampled tokens of training episodes that were sealed as not trainable, by reason."""
        self.wishes: dict[str, int] = {}
        self._dropped_since: Counter[str] = Counter()
        """The last step."""
        self._untrainable_since: Counter[str] = Counter()
        self.episodes = 0
        self.masked_tokens = 0
        self.trained_tokens = 0
        self.staleness_max = 0
        self.gap_at_0_max = 0.0
        """nats; the largest |π - μ| of a token sampled by the very weights that were trained"""

    def close(self) -> None:
        self._log.close()

    @property
    def forks(self) -> Counter[str]:
        """Turns by the reason of their fork."""
        return Counter({name.removeprefix(FORKED): count for name, count in self.placements.items() if name.startswith(FORKED)})

    @property
    def dropped(self) -> Counter[str]:
        """Agent runs by reason."""
        dropped: Counter[str] = Counter()
        for drop, count in self.drops.items():
            dropped[drop.reason] += count
        return dropped

    def end(self) -> None:
        """The tables of a run that ended well or was stopped."""
        runs = sorted(self.drops.items(), key=lambda item: (item[0].reason, item[0].length_decile, item[0].reward or 0.0))
        self._write("drops", runs=[{**drop._asdict(), "count": count} for drop, count in runs])
        self._write(
            "counts",
            placements=dict(self.placements),
            rejected=dict(self.rejected),
            untrainable_tokens=dict(self.untrainable),
            replaced_wishes=self.wishes,
        )

    def control(self, reward: float) -> None:
        self._write("control", reward=reward)

    def note(self, text: str) -> None:
        self._write("note", text=text)

    def load(self, load: Load) -> None:
        self._load = load

    def batch(self, event: BatchEvent) -> None:
        self._batches = dict.fromkeys(range(event.first_step, event.last_step + 1), event)
        self.staleness_max = max(self.staleness_max, event.staleness_max)
        self.masked_tokens += event.masked_tokens
        self.trained_tokens += event.trained_tokens

    def step(self, event: StepEvent) -> None:
        self.gap_at_0_max = max(self.gap_at_0_max, event.metrics.get("gap_nats_staleness_0_max", 0.0))
        batch = self._batches.get(event.step)
        of_batch = {}
        if batch is not None:
            of_batch = {
                "reward": batch.reward,
                "groups": batch.groups,
                "dropped_groups": batch.dropped_groups,
                "masked_tokens": batch.masked_tokens,
                "policy_version": batch.policy_version,
                "batch_staleness_mean": batch.staleness_mean,
                "batch_staleness_max": batch.staleness_max,
            }
        waits = {"engine_busy": self._load.engine_busy, "sampled_per_s": self._load.sampled_per_s}
        counts = {
            "forks": self.forks.total(),
            "fork_reasons": dict(self.forks),
            "dropped_runs": dict(self._dropped_since),
            "untrainable_tokens": dict(self._untrainable_since),
        }
        self._dropped_since.clear()
        self._untrainable_since.clear()
        self._write("step", step=event.step, **of_batch, **waits, **counts, **event.metrics)

    def episode(self, event: EpisodeEvent) -> None:
        self.episodes += not event.reason
        self.placements.update(event.placements)
        if event.split == "train":
            self.untrainable.update(event.untrainable)
            self._untrainable_since.update(event.untrainable)
        if event.reason:
            self.rejected[event.reason] += 1
            self._write("rejected", episode=event.episode, reason=event.reason, detail=event.detail, again=event.again)

    def drop(self, event: DropEvent) -> None:
        reward = None if event.reward is None else round(event.reward, 2)
        self.drops[Drop(event.reason, reward, event.length_decile)] += 1
        self._dropped_since[event.reason] += 1

    def replaced(self, wishes: dict[str, int]) -> None:
        self.wishes = wishes

    def evaluation(self, event: EvaluationEvent) -> None:
        self._write(
            "eval",
            step=event.step,
            reward=event.reward,
            stderr=event.stderr,
            episodes=event.episodes,
            failed=event.failed,
            versions=list(event.versions),
        )

    def update(self, event: UpdateEvent) -> None:
        self._write(
            "update",
            version=event.version,
            engine=event.engine,
            outcome=event.outcome,
            detail=event.detail,
            prepare_s=event.prepare_s,
            gap_s=event.gap_s,
        )

    def worker(self, event: WorkerEvent) -> None:
        self._write("worker", worker=event.worker, what=event.what, detail=event.detail)

    def _write(self, kind: str, **values: object) -> None:
        self._log.write(kind, time.time(), **values)
