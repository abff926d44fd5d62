"""The processes of a run around its controller: who is started beside it, who is watched, and what ends it."""

import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio

from agentrl.engine.remote import RemoteEngine
from agentrl.env.call import only
from agentrl.errors import AgentRLError
from agentrl.rollout.controller import Controller, Wind
from agentrl.rollout.http import serve
from agentrl.runtime import trainer_process
from agentrl.runtime.config import RunConfig
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.observe import Everyone, Load
from agentrl.runtime.prepare_process import Prepared
from agentrl.runtime.process import child
from agentrl.runtime.service import READY_S, ModelService
from agentrl.runtime.trainer_process import TrainerReady, TrainerSpec
from agentrl.runtime.worker_process import WorkerSpec
from agentrl.runtime.workers import Workers

LOAD_EVERY_S = 1.0
R = TypeVar("R")


class Crew:
    """Workers, trainer and watchers of one controller."""

    def __init__(
        self,
        *,
        config: RunConfig,
        folder: RunFolder,
        prepared: Prepared | None,
        version: int,
        service: ModelService,
        engine: RemoteEngine | None,
        controller: Controller,
        everyone: Everyone,
    ) -> None:
        """`version`: under which the engine serves the prepared weights. Neither is there when an outside model plays."""
        self.controller = controller
        self._config = config
        self._folder = folder
        self._prepared = prepared
        self._version = version
        self._service = service
        self._engine = engine
        self._everyone = everyone

    async def work(self, course: Callable[[], Awaitable[R]], *, with_trainer: bool) -> R:
        """Run a course of the controller with everyone at work. Raises the first failure, by name."""
        try:
            async with serve(self.controller, token=self._service.token) as url, anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_on_signal)
                if self._engine is not None:
                    tasks.start_soon(self._measure, self._engine)
                for process in self._service.processes:
                    tasks.start_soon(self._fail_with, process.watch)
                workers = self._workers(url)
                self._everyone.observers.append(workers)
                tasks.start_soon(self._fail_with, workers.run)
                if with_trainer and self._prepared is not None:
                    tasks.start_soon(self._fail_with, self._train, url, self._prepared)
                self._everyone.stage("running")
                result = await course()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            cause = only(failures)
            raise cause from cause.__cause__
        return result

    async def _fail_with(self, run: Callable[..., Awaitable[None]], *args: Any) -> None:
        """What a process dies of becomes the run's failure."""
        try:
            await run(*args)
        except AgentRLError as cause:
            self.controller.fail(cause)
        except BaseExceptionGroup as failures:
            root = only(failures)
            if not isinstance(root, AgentRLError):
                raise
            self.controller.fail(root)

    def _workers(self, url: str) -> Workers:
        config = self._config

        def spec(name: str) -> WorkerSpec:
            return WorkerSpec(
                env=config.env_name,
                settings=config.env_settings,
                controller=url,
                gateway=self._service.gateway,
                token=self._service.token,
                worker=name,
                config=config.rollout,
                sampling=config.sampling,
            )

        return Workers(spec, count=config.rollout.workers, logs=self._folder.logs, lost=self.controller.worker_lost)

    async def _train(self, url: str, prepared: Prepared) -> None:
        config, folder = self._config, self._folder
        weights = payload_folder()
        spec = TrainerSpec(
            folder=prepared.folder,
            checkpoint=prepared.checkpoint,
            dtype=config.model.dtype,
            seed=config.seed,
            config=config.train,
            objective=config.objective,
            controller=url,
            token=self._service.token,
            store=str(folder.root.absolute()),
            checkpoints=str(folder.checkpoints),
            weights=str(weights),
            held_version=self._version,
            next_version=self._version + 1,
        )
        try:
            async with child("trainer", trainer_process.MODULE, spec, log=folder.logs / "trainer.log") as process:
                await process.ready(TrainerReady, within_s=READY_S)
                if await process.wait() != 0:
                    await process.watch()
        finally:
            shutil.rmtree(weights, ignore_errors=True)

    async def _stop_on_signal(self) -> None:
        """Once: finish what is running, checkpoint, end. Twice: end."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            asked = False
            async for _ in signals:
                self._everyone.note("stopping now" if asked else "finishing the episodes in flight, then a checkpoint; again: stop at once")
                self.controller.stop(Wind.NOW if asked else Wind.DRAIN)
                asked = True

    async def _measure(self, engine: RemoteEngine) -> None:
        before, at = await engine.status(), anyio.current_time()
        while True:
            await anyio.sleep(LOAD_EVERY_S)
            try:
                now = await engine.status()
            except AgentRLError:
                # A dead engine is the business of those who watch it.
                continue
            elapsed_s, at = anyio.current_time() - at, anyio.current_time()
            control = self.controller.status()
            self._everyone.load(
                Load(
                    # Two clocks and the way between them: a busy engine may seem to have worked a moment longer than there was.
                    engine_busy=min(1.0, (now.busy_s - before.busy_s) / elapsed_s),
                    sampled_per_s=(now.sampled_tokens - before.sampled_tokens) / elapsed_s,
                    running=control.running,
                    waiting=control.waiting,
                    served_version=control.served_version,
                    published_version=control.published_version,
                )
            )
            before = now


def payload_folder() -> Path:
    """Where weights are handed over: shared memory where there is some."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=memory if memory.is_dir() else None))
