"""A run without processes: the real controller between simulated workers, engines, gateway and trainer, under a virtual clock.

Latencies and faults follow from one seed, so a failure replays from it.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import trio
import trio.testing

from agentrl.engine.base import Capabilities, EngineStatus, PauseMode
from agentrl.episode import AgentRunRecord, EpisodeRecord, Sealed, TokenStats
from agentrl.errors import EngineError, GatewayError, WeightError
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Published, Served
from agentrl.ledger.feed import Batch, CheckpointReport, StepReport, Stop
from agentrl.objective import advantage_of
from agentrl.rollout.controller import Controller, ControlPlan
from agentrl.rollout.coordinator import UpdateRules
from agentrl.rollout.dispatch import LeaseRules
from agentrl.rollout.observer import BatchEvent, DropEvent, EpisodeEvent, EvaluationEvent, Observer, UpdateEvent, WorkerEvent
from agentrl.rollout.policy import Policy
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.wire import EpisodeDone, Heartbeat, Lease, LeaseBeat, LeaseRequest, TaskPage, TaskRequest
from agentrl.weights.update import WeightUpdate


@dataclass(frozen=True, kw_only=True)
class World:
    """What the simulated machine is like. Rates are chances per event."""

    seed: int
    workers: int = 2
    capacity: int = 6
    tasks: int = 37
    """Of the training split; then the next epoch begins."""
    duplicates: int = 0
    turn_s: float = 1.0
    turns: int = 4
    spread: float = 0.8
    """Sigma of the log-normal length of an episode."""
    step_s: float = 4.0
    publish_s: float = 0.5
    error_rate: float = 0.0
    death_rate: float = 0.0
    freeze_rate: float = 0.0
    lost_reply_rate: float = 0.0
    seal_failure_rate: float = 0.0
    engine_failure_rate: float = 0.0
    equal_reward_rate: float = 0.2
    engines: int = 1


@dataclass
class Seen:
    """What happened, for the tests to judge."""

    trained: dict[str, int] = field(default_factory=dict)
    """Step by episode."""
    staleness: list[int] = field(default_factory=list)
    """Of each trained token's version, when its batch was handed out."""
    tokens: dict[str, dict[int, int]] = field(default_factory=dict)
    """By agent run: sampled tokens by version, as the gateway counted them."""
    batches: list[BatchEvent] = field(default_factory=list)
    episodes: list[EpisodeEvent] = field(default_factory=list)
    drops: list[DropEvent] = field(default_factory=list)
    evaluations: list[EvaluationEvent] = field(default_factory=list)
    updates: list[UpdateEvent] = field(default_factory=list)
    troubled: list[WorkerEvent] = field(default_factory=list)
    sampled_before_served: int = 0
    first_token_at: list[tuple[float, int]] = field(default_factory=list)
    finished_at: float = 0.0


class Watcher(Observer):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def batch(self, event: BatchEvent) -> None:
        self._seen.batches.append(event)

    def episode(self, event: EpisodeEvent) -> None:
        self._seen.episodes.append(event)

    def drop(self, event: DropEvent) -> None:
        self._seen.drops.append(event)

    def evaluation(self, event: EvaluationEvent) -> None:
        self._seen.evaluations.append(event)

    def update(self, event: UpdateEvent) -> None:
        self._seen.updates.append(event)

    def worker(self, event: WorkerEvent) -> None:
        self._seen.troubled.append(event)


class SimEngine:
    """Holds a version. Calls may fail before or after they took effect."""

    def __init__(self, world: World, rng: random.Random, version: int) -> None:
        self._world, self._rng = world, rng
        self.version = version
        self.paused = False
        self.quarantined = False
        self._prepared: int | None = None

    def generate(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError

    async def _perhaps_fail(self) -> None:
        await anyio.sleep(self._rng.uniform(0.001, 0.05))
        if self._rng.random() < self._world.engine_failure_rate:
            raise EngineError("the connection broke")

    async def pause(self, mode: PauseMode) -> None:
        await self._perhaps_fail()
        self.paused = True
        await self._perhaps_fail()

    async def prepare(self, update: WeightUpdate) -> None:
        await self._perhaps_fail()
        if update.version < self.version:
            raise WeightError("older than what is served")
        self._prepared = update.version

    async def load(self, update: WeightUpdate) -> None:
        await self._perhaps_fail()
        if not self.paused or self._prepared != update.version:
            raise WeightError(f"paused {self.paused}, prepared {self._prepared}, asked for {update.version}")
        if self._rng.random() < self._world.engine_failure_rate:
            self.quarantined, self._prepared = True, None
            raise WeightError("torn")
        self.version, self.quarantined = update.version, False
        await self._perhaps_fail()

    async def resume(self) -> None:
        await self._perhaps_fail()
        if self.quarantined:
            raise WeightError("quarantined")
        self.paused = False
        await self._perhaps_fail()

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def status(self) -> EngineStatus:
        await anyio.sleep(0.001)
        return EngineStatus(policy_version=self.version, paused=self.paused, prepared=self._prepared, quarantined=self.quarantined)

    def capabilities(self) -> Capabilities:
        return Capabilities("sim", 4096, 256)


class SimGateway:
    """Counts tokens by version, and seals."""

    def __init__(self, world: World, rng: random.Random, seen: Seen) -> None:
        self._world, self._rng, self._seen = world, rng, seen

    async def seal(self, record: EpisodeRecord) -> Sealed:
        await anyio.sleep(self._rng.uniform(0.0, 0.2))
        if self._rng.random() < self._world.seal_failure_rate:
            raise GatewayError("no answer")
        runs = {
            run.id: TokenStats(turns=run.turns, sampled=sum(self._seen.tokens[run.id].values()), versions=self._seen.tokens[run.id])
            for run in record.agent_runs
        }
        return Sealed(record.id, f"blob/{record.id}", 1, runs)

    async def discard(self, episode: str) -> None:
        await anyio.sleep(0.0)


class SimWorker:
    """Leases and runs episodes; may die (and be replaced), freeze, or lose a reply."""

    def __init__(self, world: World, name: str, rng: random.Random, controller: Controller, engines: list[SimEngine], seen: Seen) -> None:
        self._world, self.name, self._rng = world, name, rng
        self._controller, self._engines, self._seen = controller, engines, seen
        self._running: dict[str, anyio.CancelScope] = {}
        self._frozen_by = ""

    async def run(self) -> None:
        """One life after another, as supervision would have it."""
        ends = False
        while not ends:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._beat)
                ends = await self._live(tasks)
                tasks.cancel_scope.cancel()
            self._running.clear()
            self._frozen_by = ""
            if not ends:
                await anyio.sleep(self._rng.uniform(0.5, 5.0))

    async def _live(self, tasks: anyio.abc.TaskGroup) -> bool:
        while True:
            free = self._world.capacity - len(self._running)
            if self._frozen_by:
                await anyio.sleep(60.0)
                return False
            if free < 1:
                await anyio.sleep(0.05)
                continue
            reply = await self._controller.lease(LeaseRequest(self.name, free, 5.0))
            if reply.stop:
                return True
            if not reply.tasks and self._rng.random() < self._world.lost_reply_rate:
                continue
            for request in reply.tasks:
                tasks.start_soon(self._send_tasks, request)
            for lease in reply.leases:
                self._running[lease.id] = anyio.CancelScope()
                tasks.start_soon(self._episode, lease)
            if self._rng.random() < self._world.death_rate:
                return False
            if self._running and self._rng.random() < self._world.freeze_rate:
                self._frozen_by = self._rng.choice(list(self._running))

    async def _beat(self) -> None:
        while True:
            beats = tuple(LeaseBeat(lease) for lease in self._running)
            lag = 100.0 if self._frozen_by else 0.0
            reply = self._controller.heartbeat(Heartbeat(self.name, beats, lag, "sim", self._frozen_by))
            for lease in reply.cancel:
                if lease in self._running and not self._frozen_by:
                    self._running[lease].cancel()
            await anyio.sleep(1.0)

    async def _send_tasks(self, request: TaskRequest) -> None:
        await anyio.sleep(self._rng.uniform(0.0, 1.0))
        total = self._world.tasks if request.split == "train" else 9
        rows = range(request.start, min(request.start + request.count, total))
        tasks = tuple({"id": f"{request.split}{self._task(row)}", "prompt": "?"} for row in rows)
        self._controller.tasks(TaskPage(self.name, request.id, tasks, end=request.start + request.count >= total))

    def _task(self, row: int) -> int:
        return max(0, row - self._world.duplicates)

    async def _episode(self, lease: Lease) -> None:
        rng = random.Random(lease.seed)
        with self._running[lease.id]:
            run = f"{lease.episode}.main"
            versions = self._seen.tokens[run] = {}
            turns = max(1, round(self._world.turns * rng.lognormvariate(0.0, self._world.spread)))
            engine = rng.choice(self._engines)
            for _ in range(turns):
                await anyio.sleep(self._world.turn_s * rng.uniform(0.5, 1.5))
                while engine.paused or self._frozen_by:  # noqa: ASYNC110
                    await anyio.sleep(0.01 if engine.paused else 1.0)
                versions[engine.version] = versions.get(engine.version, 0) + 5
            failed = rng.random() < self._world.error_rate
            equal = random.Random(lease.group_seed).random() < self._world.equal_reward_rate
            reward = None if failed else 1.0 if equal else float(rng.random() < 0.5)
            child = AgentRunRecord(
                run, "main", lease.key.task_id, f"{lease.key.epoch}:{lease.key.task_id}:main", reward=reward, turns=turns
            )
            record = EpisodeRecord(
                id=lease.episode,
                key=lease.key,
                split=lease.split,
                env="sim",
                env_version="0",
                task=lease.task,
                agent_runs=(child,),
                reward=reward,
                terminal="error" if failed else "finished",
            )
            self._controller.done(EpisodeDone(self.name, lease.id, record))
            if self._rng.random() < self._world.lost_reply_rate:
                self._controller.done(EpisodeDone(self.name, lease.id, record))
        self._running.pop(lease.id, None)


class SimTrainer:
    """Takes batches as the real one does: steps, then a publication behind the next step."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        controller: Controller,
        engines: list[SimEngine],
        seen: Seen,
        plan: ControlPlan,
        *,
        version: int,
    ) -> None:
        self._world, self._rng, self._controller, self._engines, self._seen = world, rng, controller, engines, seen
        self._plan = plan
        self._version = version

    async def run(self, step: int) -> None:
        schedule = self._plan.schedule
        async with anyio.create_task_group() as tasks:
            saved = step
            publishing = anyio.Lock()
            while True:
                batch = await self._controller.next_batch(10.0)
                if batch is None:
                    continue
                if isinstance(batch, Stop):
                    break
                self._look_at(batch)
                for minibatch in batch.minibatches:
                    assert minibatch.step == step + 1
                    await anyio.sleep(self._world.step_s * self._rng.uniform(0.5, 1.5))
                    step = minibatch.step
                    for episode in minibatch.episodes:
                        assert episode.episode not in self._seen.trained, "trained twice"
                        self._seen.trained[episode.episode] = step
                    self._controller.step(StepReport(step, {}))
                    if step % schedule.publish_every == 0 or step == schedule.steps:
                        async with publishing:
                            self._version += 1
                            version = self._version
                        tasks.start_soon(self._publish, publishing, version)
                        await anyio.lowlevel.checkpoint()
            async with publishing:
                pass
            if step > saved:
                self._controller.checkpoint(CheckpointReport(step, f"checkpoints/{step}"))

    async def _publish(self, publishing: anyio.Lock, version: int) -> None:
        async with publishing:
            await anyio.sleep(self._world.publish_s * self._rng.uniform(0.5, 1.5))
            self._controller.ready(WeightUpdate(version, "shared", f"payload-{version}", ()))

    def _look_at(self, batch: Batch) -> None:
        """Count as the trainer would, from the tokens themselves."""
        now = min(engine.version for engine in self._engines)
        for minibatch in batch.minibatches:
            trained = 0
            for episode in minibatch.episodes:
                for run in episode.runs:
                    for version, count in self._seen.tokens[run.agent_run].items():
                        if version >= batch.oldest_version:
                            trained += count
                            self._seen.staleness.append(now - version)
            assert trained == minibatch.trained_tokens, "the denominator disagrees with the tokens"


def plan_of(
    schedule: Schedule, *, group_size: int = 4, retries: int = 1, eval_tasks: int = 0, eval_every: int = 0, seed: int = 0
) -> ControlPlan:
    return ControlPlan(
        schedule=schedule,
        group_size=group_size,
        seed=seed,
        retries=retries,
        leases=LeaseRules(lost_after_s=5.0, frozen_after_s=30.0, grace_s=5.0),
        updates=UpdateRules(tries=8, retry_after_s=0.1),
        eval_tasks=eval_tasks,
        eval_every=eval_every,
        task_page=8,
        task_deadline_s=20.0,
        trainer_end_s=600.0,
        tend_s=math.inf,
    )


async def simulate(
    world: World,
    plan: ControlPlan,
    policy: Policy,
    ledger: Ledger,
    *,
    seen: Seen | None = None,
    meddle: Callable[[Controller], Any] | None = None,
) -> Seen:
    """One run, to its end. `meddle` runs beside it, such as to stop it."""
    seen = seen or Seen()
    rng = random.Random(world.seed)
    version = ledger.state.next_version
    ledger.record(Published(version), Served(version))
    engines = [SimEngine(world, random.Random(rng.random()), version) for _ in range(world.engines)]
    controller = Controller(
        ledger,
        plan,
        policy,
        advantage_of("default"),
        sealer=SimGateway(world, random.Random(rng.random()), seen),
        engines={f"engine{at}": engine for at, engine in enumerate(engines)},
        lease_s=lambda task: 400.0,
        observer=Watcher(seen),
    )
    workers = [SimWorker(world, f"w{at}", random.Random(rng.random()), controller, engines, seen) for at in range(world.workers)]
    trainer = SimTrainer(world, random.Random(rng.random()), controller, engines, seen, plan, version=version)
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(worker.run)
        tasks.start_soon(trainer.run, ledger.state.steps_done)
        if meddle is not None:
            tasks.start_soon(meddle, controller)
        with anyio.fail_after(1_000_000):
            await controller.run()
        seen.finished_at = anyio.current_time()
        tasks.cancel_scope.cancel()
    assert not any(engine.paused for engine in engines), "a pause leaked"
    return seen


def run_simulation(main: Callable[[], Any], seed: int) -> Any:
    """Under trio's virtual clock, with its scheduling seeded too."""
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio._core._run._r.seed(seed)
    return anyio.run(main, backend="trio", backend_options={"clock": trio.testing.MockClock(autojump_threshold=0)})
