"""Publishing while training goes on: the snapshot is taken between two steps, everything after it happens in a thread.

One publication is under way at a time, so at most one snapshot is held, and versions reach the controller in order.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from agentrl.train.trainer import Trainer
from agentrl.weights.publish import Snapshot, WeightPublisher, snapshot
from agentrl.weights.update import WeightUpdate


class Publication:
    """`announce` tells the controller that a version is ready; `next_version` is the first number never used before."""

    def __init__(self, publisher: WeightPublisher, announce: Callable[[WeightUpdate], None], *, next_version: int) -> None:
        self.next_version = next_version
        self._publisher = publisher
        self._announce = announce
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._under_way: Future[float] | None = None

    def start(self, trainer: Trainer) -> dict[str, float]:
        """Snapshot the weights as the next version and publish it behind. Returns what the last one cost; raises what it raised."""
        published_s = self.wait()
        started = time.perf_counter()
        shot = snapshot(dict(trainer.policy.named_parameters()), dtype=trainer.policy.dtype)
        version, self.next_version = self.next_version, self.next_version + 1
        trainer.held_version = version
        self._under_way = self._thread.submit(self._publish, shot, version)
        return {"published_version": float(version), "snapshot_s": time.perf_counter() - started, "publish_s": published_s}

    def wait(self) -> float:
        """Until the one under way is announced. Returns the seconds it took in its thread; raises what it raised."""
        under_way, self._under_way = self._under_way, None
        return under_way.result() if under_way is not None else 0.0

    def check(self) -> None:
        """Raise what the one under way raised, if it failed: whoever waits for its effect would wait for ever."""
        if self._under_way is not None and self._under_way.done():
            self._under_way.result()

    def close(self) -> None:
        self._thread.shutdown()

    def _publish(self, shot: Snapshot, version: int) -> float:
        started = time.perf_counter()
        self._announce(self._publisher.publish(shot, version))
        return time.perf_counter() - started
