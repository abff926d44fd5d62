"""Main of an env worker process: the environment, and as many of its episodes as it may run at once."""

import os
import signal
import sys
from typing import Any

import anyio
import msgspec

from agentrl.engine.config import SamplingConfig
from agentrl.env import make
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import work
from agentrl.runtime.child import read_spec, tell
from agentrl.runtime.log import log_to_stderr

MODULE = "agentrl.runtime.worker_process"


class WorkerSpec(msgspec.Struct, frozen=True):
    env: str
    settings: dict[str, Any]
    """The section `[env]` without its name."""
    controller: str
    gateway: str
    token: str
    worker: str
    config: RolloutConfig
    sampling: SamplingConfig


class WorkerReady(msgspec.Struct, frozen=True):
    worker: str


async def run(spec: WorkerSpec) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_sigterm, tasks.cancel_scope)
        env = make(spec.env, spec.settings)
        tell(WorkerReady(worker=spec.worker))
        await work(
            env,
            controller=spec.controller,
            gateway=spec.gateway,
            token=spec.token,
            worker=spec.worker,
            config=spec.config,
            sampling=spec.sampling,
        )
        tasks.cancel_scope.cancel()


async def _end_on_sigterm(scope: anyio.CancelScope) -> None:
    """So that teardown and stop of the environment still run."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


if __name__ == "__main__":
    log_to_stderr("worker")
    anyio.run(run, read_spec(WorkerSpec))
    sys.stderr.flush()
    # Threads of user code that outlived their deadline would hold the interpreter's exit for ever.
    os._exit(0)
