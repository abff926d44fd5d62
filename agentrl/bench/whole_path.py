"""What an episode costs on its whole path: worker, gateway, controller and ledger, each as in a run, without a model.

The worker and the gateway are the processes of a run; the controller, its journal on disk and its routes live here, as they do in the main
process of a run. Only the engine is scripted and the trainer takes its batches without reading them: neither is counted.
"""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec

from agentrl.bench import reach, scripted_process
from agentrl.bench.scripted_process import ScriptedReady, ScriptedSpec
from agentrl.bench.tokens import write_model
from agentrl.engine.config import ModelConfig, SamplingConfig
from agentrl.engine.remote import RemoteEngine
from agentrl.gateway.config import GatewayConfig
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Published, Served
from agentrl.ledger.feed import CheckpointReport, StepReport, Stop
from agentrl.objective.advantage import advantage_of
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.controller import Controller, ControlPlan
from agentrl.rollout.dispatch import LeaseRules
from agentrl.rollout.http import serve
from agentrl.rollout.observer import EpisodeEvent, Observer
from agentrl.rollout.policy import policy_of
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.sealer import GatewaySealer
from agentrl.runtime import gateway_process, worker_process
from agentrl.runtime.gateway_process import GatewayReady, GatewaySpec
from agentrl.runtime.process import child
from agentrl.runtime.worker_process import WorkerReady, WorkerSpec
from agentrl.weights.update import WeightUpdate

STEPS = 24
GROUPS, GROUP_SIZE = 8, 8
_TOKEN = "bench"
_READY_S = 60.0
_POLL_S = 30.0


class Shares(msgspec.Struct, frozen=True):
    """CPU milliseconds a turn."""

    worker: float
    gateway: float
    controller: float

    @property
    def total(self) -> float:
        return self.worker + self.gateway + self.controller


class _Counter(Observer):
    """Turns of scored episodes."""

    def __init__(self) -> None:
        self.turns = 0

    def episode(self, event: EpisodeEvent) -> None:
        if event.reason:
            raise RuntimeError(f"episode {event.episode} was rejected: {event.reason}: {event.detail}")
        self.turns += event.turns


@dataclass(frozen=True)
class _Policy:
    """The processes that serve the scripted policy."""

    engine: str
    """Address."""
    gateway: str
    """URL."""
    gateway_pid: int


async def whole_path(*, steps: int = STEPS) -> Shares:
    """A run of `steps` batches of GROUPS × GROUP_SIZE episodes of TURNS turns, from the first lease to the last record."""
    with tempfile.TemporaryDirectory(prefix="agentrl-") as name:
        folder = Path(name)
        write_model(folder / "model", [reach.RULES, scripted_process.TRY, "Numbers: 3 4 7. Target: 17. too low"])
        async with _policy(folder) as policy:
            with closing(Ledger.open(folder / "ledger.sqlite")) as ledger:
                ledger.record(Published(0), Served(0))
                return await _run(folder, ledger, policy, steps)


async def _run(folder: Path, ledger: Ledger, policy: _Policy, steps: int) -> Shares:
    counter = _Counter()
    async with (
        RemoteEngine(policy.engine) as engine,
        GatewaySealer(policy.gateway, token=_TOKEN) as sealer,
        serve(controller := _controller(ledger, engine, sealer, counter, steps), token=_TOKEN) as url,
        child("worker", worker_process.MODULE, _worker(url, policy.gateway), log=folder / "worker.log") as worker,
    ):
        await worker.ready(WorkerReady, within_s=_READY_S)
        pids = (worker.pid, policy.gateway_pid, os.getpid())
        before = [cpu_s(pid) for pid in pids]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_train, controller, steps)
            await controller.run()
        after = [cpu_s(pid) for pid in pids]
    return Shares(*(1000 * (end - start) / counter.turns for start, end in zip(before, after, strict=True)))


async def _train(controller: Controller, steps: int) -> None:
    """Take batches and publish versions, as a trainer does that needs no time for either."""
    while not isinstance(batch := await controller.next_batch(_POLL_S), Stop):
        for minibatch in batch.minibatches if batch is not None else ():
            controller.step(StepReport(step=minibatch.step, metrics={}))
            controller.ready(WeightUpdate(version=minibatch.step, transport="shared", locator="", tensors=()))
    controller.checkpoint(CheckpointReport(step=steps, path="none"))


def _controller(ledger: Ledger, engine: RemoteEngine, sealer: GatewaySealer, observer: Observer, steps: int) -> Controller:
    rollout = RolloutConfig()
    plan = ControlPlan(
        schedule=Schedule(steps=steps, groups_per_step=GROUPS),
        group_size=GROUP_SIZE,
        leases=LeaseRules(lost_after_s=rollout.lost_after_s, frozen_after_s=rollout.frozen_after_s),
    )
    return Controller(
        ledger,
        plan,
        policy_of(rollout.policy, rollout.window),
        advantage_of("default"),
        sealer=sealer,
        engines={"engine": engine},
        lease_s=lambda task: 600.0,
        observer=observer,
    )


def _worker(controller: str, gateway: str) -> WorkerSpec:
    return WorkerSpec(
        env=f"{reach.__file__}:{reach.Reach.__name__}",
        settings={},
        controller=controller,
        gateway=gateway,
        token=_TOKEN,
        worker="worker",
        config=RolloutConfig(),
        sampling=SamplingConfig(),
    )


@asynccontextmanager
async def _policy(folder: Path) -> AsyncIterator[_Policy]:
    """A gateway over the scripted engine."""
    scripted = ScriptedSpec(model=str(folder / "model"), address=f"unix:{folder}/engine")
    async with child("scripted engine", scripted_process.MODULE, scripted, log=folder / "engine.log") as engine:
        address = (await engine.ready(ScriptedReady, within_s=_READY_S)).address
        spec = GatewaySpec(
            folder=str(folder / "model"),
            model=ModelConfig(),
            config=GatewayConfig(),
            engine=address,
            token=_TOKEN,
            store=str(folder),
            journal=str(folder / "journal"),
        )
        async with child("gateway", gateway_process.MODULE, spec, log=folder / "gateway.log") as gateway:
            yield _Policy(address, (await gateway.ready(GatewayReady, within_s=_READY_S)).url, gateway.pid)


def cpu_s(pid: int) -> float:
    """CPU seconds of a living process, all its threads together, in ticks of 10 ms. Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
