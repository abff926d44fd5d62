"""A run on this machine: prepare, start the processes, control them to the end. The door behind `agentrl train` and `agentrl eval`."""

import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from agentrl.engine.remote import RemoteEngine
from agentrl.env import Env, make
from agentrl.env.call import only
from agentrl.env.limits import Limits, bounds
from agentrl.errors import AgentRLError
from agentrl.ledger import Comparison, Ledger
from agentrl.ledger.entry import Published, Served
from agentrl.objective.advantage import advantage_of
from agentrl.rollout.controller import Controller, ControlPlan, Wind
from agentrl.rollout.dispatch import LeaseRules
from agentrl.rollout.evaluation import EvaluationResult
from agentrl.rollout.http import serve
from agentrl.rollout.policy import policy_of
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.sealer import GatewaySealer
from agentrl.runtime import engine_process, gateway_process, trainer_process
from agentrl.runtime.config import RunConfig
from agentrl.runtime.engine_process import EngineReady, EngineSpec
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.gateway_process import GatewayReady, GatewaySpec
from agentrl.runtime.observe import Everyone, Load, RunObserver
from agentrl.runtime.prepare import prepare
from agentrl.runtime.prepare_process import Prepared, PrepareSpec
from agentrl.runtime.process import Child, child
from agentrl.runtime.trainer_process import TrainerReady, TrainerSpec
from agentrl.runtime.worker_process import WorkerSpec
from agentrl.runtime.workers import Workers

CACHE = Path.home() / ".cache" / "agentrl"
READY_S = 300.0
"""For loading a model."""
LOAD_EVERY_S = 1.0
R = TypeVar("R")


async def train(config: RunConfig, folder: RunFolder, observer: RunObserver, *, resume: bool = False) -> str:
    """The whole run; the reason of its end ("finished", "stopped"). Raises AgentRLError with what made it fail."""
    async with _machine(config, folder, observer, resume=resume) as machine:
        return await machine.control(machine.controller.run, with_trainer=True)


async def evaluate(config: RunConfig, folder: RunFolder, observer: RunObserver) -> EvaluationResult:
    """Held-out tasks once, without a trainer."""
    async with _machine(config, folder, observer, resume=False) as machine:
        return await machine.control(machine.controller.evaluate_only, with_trainer=False)


@asynccontextmanager
async def _machine(config: RunConfig, folder: RunFolder, observer: RunObserver, *, resume: bool) -> AsyncIterator["_Machine"]:
    """Model, engine, gateway and controller, up; all of them down afterwards."""
    env = make(config.env_name, config.env_settings)
    observer.stage("preparing the model", config.model.name)
    spec = PrepareSpec(
        model=config.model.name,
        env=config.env_name,
        settings=config.env_settings,
        seed=config.seed,
        cache=str(CACHE),
        checkpoints=str(folder.checkpoints) if resume else None,
    )
    prepared = await prepare(
        spec, log=folder.logs / "prepare.log", doing=lambda what, part: observer.stage("preparing the model", what, part)
    )
    for refusal in prepared.refused:
        observer.note(f"passed over a checkpoint that is not whole: {refusal}")
    shutil.copyfile(Path(prepared.folder) / "tokenizer.json", folder.tokenizer)
    ledger = Ledger.open(folder.ledger)
    scratch = Path(tempfile.mkdtemp(prefix="agentrl-"))
    try:
        if resume:
            ledger.resume_from(prepared.step)
        version = ledger.state.highest_version + 1
        ledger.record(Published(version), Served(version))
        async with _machine_on(config, folder, observer, env, prepared, ledger, version, scratch) as machine:
            yield machine
    finally:
        ledger.close()
        shutil.rmtree(scratch, ignore_errors=True)


@asynccontextmanager
async def _machine_on(
    config: RunConfig,
    folder: RunFolder,
    observer: RunObserver,
    env: Env,
    prepared: Prepared,
    ledger: Ledger,
    version: int,
    scratch: Path,
) -> AsyncIterator["_Machine"]:
    token = secrets.token_urlsafe(32)
    observer.stage("starting", "engine")
    engine_spec = EngineSpec(
        folder=prepared.checkpoint or prepared.folder,
        dtype=config.model.dtype,
        config=config.engine,
        address=f"unix:{scratch}/engine",
        policy_version=version,
        seed=config.seed,
    )
    async with child("engine", engine_process.MODULE, engine_spec, log=folder.logs / "engine.log") as engine_child:
        address = (await engine_child.ready(EngineReady, within_s=READY_S)).address
        observer.stage("starting", "gateway")
        gateway_spec = GatewaySpec(
            folder=prepared.folder,
            model=config.model,
            config=config.gateway,
            engine=address,
            token=token,
            store=str(folder.root.absolute()),
            journal=str(folder.journal),
        )
        async with child("gateway", gateway_process.MODULE, gateway_spec, log=folder.logs / "gateway.log") as gateway_child:
            gateway = (await gateway_child.ready(GatewayReady, within_s=READY_S)).url
            everyone = Everyone([observer])
            async with RemoteEngine(address) as engine, GatewaySealer(gateway, token=token) as sealer:
                controller = Controller(
                    ledger,
                    _plan(config, env),
                    policy_of(config.rollout.policy, config.rollout.window),
                    _comparison(config),
                    sealer=sealer,
                    engines={"engine": engine},
                    lease_s=_lease_s(env, config),
                    observer=everyone,
                )
                yield _Machine(
                    config=config,
                    folder=folder,
                    prepared=prepared,
                    token=token,
                    version=version,
                    gateway=gateway,
                    engine=engine,
                    controller=controller,
                    everyone=everyone,
                    watched=[engine_child, gateway_child],
                )


class _Machine:
    """All that runs, put together by `_machine_on`."""

    def __init__(
        self,
        *,
        config: RunConfig,
        folder: RunFolder,
        prepared: Prepared,
        token: str,
        version: int,
        gateway: str,
        engine: RemoteEngine,
        controller: Controller,
        everyone: Everyone,
        watched: list[Child],
    ) -> None:
        self.controller = controller
        self._config = config
        self._folder = folder
        self._prepared = prepared
        self._token = token
        self._version = version
        self._gateway = gateway
        self._engine = engine
        self._everyone = everyone
        self._watched = watched

    async def control(self, course: Callable[[], Awaitable[R]], *, with_trainer: bool) -> R:
        """Run the controller's course with workers (and a trainer) beside it. Raises the first failure, by name."""
        try:
            async with serve(self.controller, token=self._token) as url, anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_on_signal)
                tasks.start_soon(self._measure)
                for process in self._watched:
                    tasks.start_soon(self._fail_with, process.watch)
                workers = self._workers(url)
                self._everyone.observers.append(workers)
                tasks.start_soon(self._fail_with, workers.run)
                if with_trainer:
                    tasks.start_soon(self._fail_with, self._train, url)
                self._everyone.stage("running")
                result = await course()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            cause = only(failures)
            raise cause from cause.__cause__
        return result

    async def _fail_with(self, run: Callable[..., Any], *args: Any) -> None:
        """What a process dies of becomes the run's failure."""
        try:
            await run(*args)
        except BaseExceptionGroup as failures:
            self._fail(only(failures))
        except AgentRLError as cause:
            self._fail(cause)

    def _fail(self, cause: BaseException) -> None:
        if not isinstance(cause, AgentRLError):
            raise cause
        self.controller.fail(cause)

    def _workers(self, url: str) -> Workers:
        def spec(name: str) -> WorkerSpec:
            return WorkerSpec(
                env=self._config.env_name,
                settings=self._config.env_settings,
                controller=url,
                gateway=self._gateway,
                token=self._token,
                worker=name,
                config=self._config.rollout,
                sampling=self._config.sampling,
            )

        return Workers(spec, count=self._config.rollout.workers, logs=self._folder.logs, lost=self.controller.worker_lost)

    async def _train(self, url: str) -> None:
        config, folder = self._config, self._folder
        weights = payload_folder()
        spec = TrainerSpec(
            folder=self._prepared.folder,
            checkpoint=self._prepared.checkpoint,
            dtype=config.model.dtype,
            config=msgspec.structs.replace(config.train, seed=config.seed),
            objective=config.objective,
            controller=url,
            token=self._token,
            store=str(folder.root.absolute()),
            checkpoints=str(folder.checkpoints),
            weights=str(weights),
            held_version=self._version,
            next_version=self._version + 1,
        )
        log = folder.logs / "trainer.log"
        try:
            async with child("trainer", trainer_process.MODULE, spec, log=log) as process:
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
                self._everyone.note(
                    "stopping now" if asked else "finishing the episodes in flight, then a checkpoint; again to stop at once"
                )
                self.controller.stop(Wind.NOW if asked else Wind.DRAIN)
                asked = True

    async def _measure(self) -> None:
        before, at = await self._engine.status(), anyio.current_time()
        while True:
            await anyio.sleep(LOAD_EVERY_S)
            try:
                now, then = await self._engine.status(), at
            except AgentRLError:
                continue
            at = anyio.current_time()
            control = self.controller.status()
            self._everyone.load(
                Load(
                    engine_busy=(now.busy_s - before.busy_s) / (at - then),
                    sampled_per_s=(now.sampled_tokens - before.sampled_tokens) / (at - then),
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


def _plan(config: RunConfig, env: Env) -> ControlPlan:
    train, rollout = config.train, config.rollout
    return ControlPlan(
        schedule=Schedule(
            steps=train.steps, groups_per_step=train.groups_per_step, minibatches=train.minibatches, publish_every=train.publish_every
        ),
        group_size=train.group_size,
        seed=config.seed,
        retries=env.config.retries,
        on_update=rollout.on_update,
        leases=LeaseRules(lost_after_s=rollout.lost_after_s, frozen_after_s=rollout.frozen_after_s, leaked_threads=rollout.leaked_threads),
        eval_tasks=config.eval.tasks,
        eval_every=config.eval.every,
        eval_samples=config.eval.samples,
    )


def _comparison(config: RunConfig) -> Comparison:
    return advantage_of(config.objective.preset)


def _lease_s(env: Env, config: RunConfig) -> Callable[[dict[str, Any]], float]:
    """Set-up, run, reward and teardown at their limits, and the slack."""
    main = next(iter(env.agents.values()))

    def seconds(task: dict[str, Any]) -> float:
        own = msgspec.convert(task["limits"], Limits) if task.get("limits") else None
        limits = bounds(main.limits, own, env.config.limits)
        return 2 * limits.setup_s + limits.run_s + limits.reward_s + config.rollout.lease_slack_s

    return seconds
