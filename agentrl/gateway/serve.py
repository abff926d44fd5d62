"""The gateway put together: from a model folder and an engine to a listening port."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from aiohttp import web
from anyio.abc import TaskGroup

from agentrl.engine.base import Engine
from agentrl.engine.config import ModelConfig
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.counters import Counters
from agentrl.gateway.draw import VersionClock
from agentrl.gateway.families import family_renderer
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.http import application
from agentrl.gateway.journal import Journal
from agentrl.gateway.proof import prove
from agentrl.gateway.relay import Relay, Unrendered
from agentrl.gateway.render import Renderer, TemplateRenderer
from agentrl.gateway.store import EpisodeStore
from agentrl.gateway.template import Template
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.gateway.turns import TurnMaker


@dataclass(frozen=True)
class Serving:
    """A gateway that listens."""

    gateway: Gateway
    host: str
    port: int

    @property
    def url(self) -> str:
        """Without a trailing slash; control routes are under /control."""
        return self.gateway.config.public_url or f"http://{self.host}:{self.port}"


@asynccontextmanager
async def serve(
    engine: Engine | None,
    *,
    model_folder: Path | None,
    model: ModelConfig,
    config: GatewayConfig,
    run_url: str,
    journal_folder: Path,
    control_token: str,
) -> AsyncIterator[Serving]:
    """Serve until the context ends. Without an engine and a model folder, `config.outside_model` plays the policy.

    Raises ConfigError for a model that cannot be spoken to.
    """
    counters = Counters()
    journal = Journal(journal_folder)
    relay = Relay(config, journal, counters)
    renderer: Renderer = Unrendered()
    maker: TurnMaker | Relay = relay
    context_length = None
    if engine is not None and model_folder is not None:
        tokenizer = Tokenizer.from_folder(model_folder)
        renderer = make_renderer(model_folder, tokenizer, model, engine)
        clock = VersionClock((await engine.status()).policy_version)
        maker = TurnMaker(engine, clock, tokenizer, journal, config, counters)
        context_length = engine.capabilities().context_length
    elif not config.outside_model:
        raise ConfigError("a gateway without a model needs gateway.outside_url and gateway.outside_model to play the policy")
    async with _tasks() as tasks:
        gateway = Gateway(
            renderer=renderer,
            maker=maker,
            relay=relay,
            context_length=context_length,
            journal=journal,
            store=EpisodeStore(run_url),
            config=config,
            counters=counters,
            control_token=control_token,
            tasks=tasks,
        )
        try:
            async with _listening(gateway) as serving:
                yield serving
        finally:
            journal.close()


def tune_collector() -> None:
    """For a process that is nothing but a gateway: its many long-lived messages and turns form no cycles worth searching for so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@asynccontextmanager
async def _tasks() -> AsyncIterator[TaskGroup]:
    """Calls in flight end with the context, and one error of its body stays that error."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


@asynccontextmanager
async def _listening(gateway: Gateway) -> AsyncIterator[Serving]:
    config = gateway.config
    bound: list[Serving] = []
    runner = web.AppRunner(application(gateway, lambda: bound[0].url), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=4096)
        try:
            await site.start()
        except OSError as cause:
            raise ConfigError(f"the gateway cannot listen on {config.host}:{config.port}: {cause.strerror}; choose another port") from cause
        bound.append(Serving(gateway, config.host, runner.addresses[0][1]))
        yield bound[0]
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


def make_renderer(folder: Path, tokenizer: Tokenizer, model: ModelConfig, engine: Engine) -> Renderer:
    """The model's renderer, proven. Raises ConfigError."""
    capabilities = engine.capabilities()
    if tokenizer.vocab_size > capabilities.vocab_size:
        raise ConfigError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} tokens and the engine's model {capabilities.vocab_size}; "
            "they are not of the same model"
        )
    known = family_renderer(model.name, tokenizer, model.template_kwargs) if model.tool_format == "native" else None
    if known is not None:
        return known
    template = Template.from_folder(folder, kwargs=model.template_kwargs)
    renderer = TemplateRenderer(tokenizer, template, tool_format=model.tool_format, eos_token_ids=capabilities.eos_token_ids)
    proof = prove(renderer)
    renderer.extends = proof.extension is None
    if proof.tools is not None:
        renderer.tools_refusal = (
            f"tools cannot be used with this model's chat template ({proof.tools}); "
            "set model.tool_format=hermes, which writes them into the system text"
        )
    return renderer
