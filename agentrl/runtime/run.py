"""A run on this machine: prepare, start the processes, control them to the end. The door behind `agentrl train` and `agentrl eval`."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import anyio

from agentrl.engine.remote import RemoteEngine
from agentrl.env import Env, Task, make
from agentrl.errors import ConfigError, GatewayError, StoreError, boundary
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Published, Served
from agentrl.objective.advantage import Advantage, advantage_of, shuffled
from agentrl.rollout.controller import Controller, ControlPlan
from agentrl.rollout.dispatch import LeaseRules
from agentrl.rollout.evaluation import EvaluationResult
from agentrl.rollout.policy import policy_of
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.sealer import GatewaySealer
from agentrl.runtime.config import RunConfig
from agentrl.runtime.crew import Crew
from agentrl.runtime.folder import CACHE, RunFolder
from agentrl.runtime.observe import Everyone, RunObserver
from agentrl.runtime.prepare import prepare
from agentrl.runtime.prepare_process import Prepared, PrepareSpec
from agentrl.runtime.service import model_service

STATUS_S = 10.0


async def train(config: RunConfig, folder: RunFolder, observer: RunObserver, *, resume: bool = False) -> str:
    """The whole run; the reason of its end ("finished", "stopped"). Raises AgentRLError with what made it fail."""
    config.check_trainable()
    env = make(config.env_name, config.env_settings)
    with closing(Ledger.open(folder.ledger)) as ledger:
        state = ledger.state
        if resume and state.steps_done >= config.train.steps and (not config.eval.tasks or state.evaluated_step >= state.steps_done):
            raise ConfigError(
                f"{folder.name} is finished ({state.steps_done} of {config.train.steps} steps): look at it with `agentrl audit` and "
                f"`agentrl eval`, or raise train.steps in {folder.config} to train on"
            )
        prepared = await prepared_for(config, folder, observer, checkpoints=folder.checkpoints if resume else None)
        assert prepared is not None, "a trainable policy is a local one"
        if resume:
            ledger.resume_from(prepared.step)
        async with _crew(config, folder, observer, env, prepared, ledger) as crew:
            return await crew.work(crew.controller.run, with_trainer=True)


async def evaluate(config: RunConfig, folder: RunFolder, observer: RunObserver, *, checkpoints: Path | None) -> EvaluationResult:
    """Held-out tasks once, without a trainer, on the newest of `checkpoints` or on the model that the configuration names."""
    env = make(config.env_name, config.env_settings)
    with closing(Ledger.open(folder.ledger)) as ledger:
        prepared = await prepared_for(config, folder, observer, checkpoints=checkpoints)
        async with _crew(config, folder, observer, env, prepared, ledger) as crew:
            return await crew.work(crew.controller.evaluate_only, with_trainer=False)


async def prepared_for(config: RunConfig, folder: RunFolder, observer: RunObserver, *, checkpoints: Path | None) -> Prepared | None:
    """Find or make the model, and tell the observer what it found. None if an outside model plays the policy."""
    if config.gateway.outside_model:
        return None
    observer.stage("preparing the model", config.model.name)
    spec = PrepareSpec(
        model=config.model.name,
        env=config.env_name,
        settings=config.env_settings,
        seed=config.seed,
        cache=str(CACHE),
        eval_tasks=config.eval.tasks,
        checkpoints=str(checkpoints) if checkpoints else None,
    )

    def doing(what: str, fraction: float | None) -> None:
        observer.stage("preparing the model", what, fraction)

    prepared = await prepare(spec, log=folder.logs / "prepare.log", doing=doing)
    for refusal in prepared.refused:
        observer.note(f"passed over a checkpoint that is not whole: {refusal}")
    if prepared.control is not None:
        observer.control(prepared.control)
    with boundary(StoreError, f"copy the tokenizer of {config.model.name} into the run's folder"):
        shutil.copyfile(Path(prepared.folder) / "tokenizer.json", folder.tokenizer)
    return prepared


@asynccontextmanager
async def _crew(
    config: RunConfig, folder: RunFolder, observer: RunObserver, env: Env, prepared: Prepared | None, ledger: Ledger
) -> AsyncIterator[Crew]:
    """Engine, gateway and controller, up. The weights that they start from are a publication like any other."""
    version = ledger.state.highest_version + 1
    ledger.record(Published(version), Served(version))
    everyone = Everyone([observer])
    async with (
        model_service(config, folder, prepared, observer, policy_version=version) as service,
        RemoteEngine(service.engine) if service.engine else nullcontext() as engine,
        GatewaySealer(service.gateway, token=service.token) as sealer,
    ):
        controller = Controller(
            ledger,
            _plan(config, env),
            policy_of(config.rollout.policy, config.rollout.window),
            _comparison(config),
            sealer=sealer,
            engines={"engine": engine} if engine else {},
            lease_s=lambda task: env.episode_s(Task.from_builtins(task)) + config.rollout.lease_slack_s,
            observer=everyone,
        )
        yield Crew(
            config=config,
            folder=folder,
            prepared=prepared,
            version=version,
            service=service,
            engine=engine,
            controller=controller,
            everyone=everyone,
        )
        await _tell_replaced(sealer, everyone)


async def _tell_replaced(sealer: GatewaySealer, everyone: Everyone) -> None:
    """The run is made: a gateway that does not answer any more spoils nothing."""
    with suppress(GatewayError), anyio.move_on_after(STATUS_S):
        everyone.replaced((await sealer.status()).replaced_wishes)


def _comparison(config: RunConfig) -> Advantage:
    judge = advantage_of(config.objective.preset)
    return replace(judge, of=shuffled(judge.of, seed=config.seed)) if config.objective.shuffle_rewards else judge


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
