"""What watches a run: the controller's events, and the stages around them. The metrics file and the live view are observers."""

from collections.abc import Sequence

import msgspec

from agentrl.rollout.observer import (
    BatchEvent,
    DropEvent,
    EpisodeEvent,
    EvaluationEvent,
    Observer,
    StepEvent,
    UpdateEvent,
    WorkerEvent,
)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine and the queues looked like since the last reading."""

    engine_busy: float
    """Fraction of the time spent in forward passes."""
    sampled_per_s: float
    """tokens/s"""
    running: int
    """Episodes under lease."""
    waiting: int
    served_version: int
    published_version: int


class RunObserver(Observer):
    """An observer of a whole run. Ignores everything."""

    def stage(self, name: str, detail: str = "", fraction: float | None = None) -> None:
        """A stage began or moved on; `fraction` of it is done, if known."""

    def load(self, load: Load) -> None: ...

    def control(self, reward: float) -> None:
        """What a policy without the skill would earn on the held-out tasks."""

    def replaced(self, wishes: dict[str, int]) -> None:
        """At the end: sampling parameters that scaffolds asked for and the run replaced, by name."""

    def note(self, text: str) -> None:
        """Something that a person should read."""


class Everyone(RunObserver):
    """Tells all of them, in order. Plain observers hear the controller's events only."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = list(observers)

    def stage(self, name: str, detail: str = "", fraction: float | None = None) -> None:
        for observer in self._run_observers():
            observer.stage(name, detail, fraction)

    def load(self, load: Load) -> None:
        for observer in self._run_observers():
            observer.load(load)

    def control(self, reward: float) -> None:
        for observer in self._run_observers():
            observer.control(reward)

    def replaced(self, wishes: dict[str, int]) -> None:
        for observer in self._run_observers():
            observer.replaced(wishes)

    def note(self, text: str) -> None:
        for observer in self._run_observers():
            observer.note(text)

    def _run_observers(self) -> list[RunObserver]:
        return [observer for observer in self.observers if isinstance(observer, RunObserver)]

    def batch(self, event: BatchEvent) -> None:
        for observer in self.observers:
            observer.batch(event)

    def step(self, event: StepEvent) -> None:
        for observer in self.observers:
            observer.step(event)

    def episode(self, event: EpisodeEvent) -> None:
        for observer in self.observers:
            observer.episode(event)

    def drop(self, event: DropEvent) -> None:
        for observer in self.observers:
            observer.drop(event)

    def evaluation(self, event: EvaluationEvent) -> None:
        for observer in self.observers:
            observer.evaluation(event)

    def update(self, event: UpdateEvent) -> None:
        for observer in self.observers:
            observer.update(event)

    def worker(self, event: WorkerEvent) -> None:
        for observer in self.observers:
            observer.worker(event)
