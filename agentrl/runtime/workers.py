"""Env worker processes: started, killed when frozen, replaced when they end, given up when they only fail."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio

from agentrl.errors import ProcessError
from agentrl.rollout.observer import EpisodeEvent, Observer, WorkerEvent
from agentrl.runtime import worker_process
from agentrl.runtime.process import Child, child, ended, failure
from agentrl.runtime.worker_process import WorkerReady, WorkerSpec

READY_S = 120.0
FAILURES = 5
"""Of one worker's place in a row, without an episode in between, before the run is given up."""
BACKOFF_S = 0.5
SAME_ORDER = {"PYTHONHASHSEED": "0"}
"""Some task generators follow the order of sets; a task streamed by one worker must be the same in another."""


class Workers(Observer):
    """Keeps `count` workers alive. As an observer it hears of frozen ones, and of episodes that show a worker to be healthy."""

    def __init__(self, spec: Callable[[str], WorkerSpec], *, count: int, logs: Path, lost: Callable[[str, str], None]) -> None:
        """`spec`: of a worker with that name. `lost(name, detail)`: a worker's process ended before its time."""
        self._spec = spec
        self._count = count
        self._logs = logs
        self._lost = lost
        self._running: dict[str, Child] = {}
        self._healthy: set[str] = set()
        self.restarts = 0

    async def run(self) -> None:
        """Until cancelled. Raises ProcessError when a worker only fails."""
        async with anyio.create_task_group() as tasks:
            for place in range(self._count):
                tasks.start_soon(self._keep, place)

    async def _keep(self, place: int) -> None:
        failures = life = 0
        while True:
            name = f"worker-{place}" if life == 0 else f"worker-{place}.{life}"
            log = self._logs / f"worker-{place}.log"
            async with child(name, worker_process.MODULE, self._spec(name), log=log, extra_env=SAME_ORDER) as process:
                self._running[name] = process
                try:
                    await process.ready(WorkerReady, within_s=READY_S)
                    status = await process.wait()
                    why = failure(name, ended(status), log)
                except ProcessError as error:
                    why = str(error)
                finally:
                    del self._running[name]
            self._lost(name, why)
            failures = 0 if name in self._healthy else failures + 1
            if failures >= FAILURES:
                raise ProcessError(f"a worker failed {FAILURES} times in a row; the last time {why}")
            life += 1
            self.restarts += 1
            await anyio.sleep(BACKOFF_S * 2**failures)

    def worker(self, event: WorkerEvent) -> None:
        """Frozen or silent: nothing but a kill reaches it. Its end is then seen by the one who keeps it."""
        process = self._running.get(event.worker)
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)

    def episode(self, event: EpisodeEvent) -> None:
        if not event.reason:
            self._healthy.add(event.worker)
