"""A model that can be called: the engine and gateway processes over one model folder, or the gateway alone before an outside model."""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentrl.runtime import engine_process, gateway_process
from agentrl.runtime.config import RunConfig
from agentrl.runtime.engine_process import EngineReady, EngineSpec
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.gateway_process import GatewayReady, GatewaySpec
from agentrl.runtime.observe import RunObserver
from agentrl.runtime.prepare_process import Prepared
from agentrl.runtime.process import Child, child

READY_S = 300.0
"""For loading a model."""


@dataclass(frozen=True)
class ModelService:
    """Where to call it, and the processes to watch."""

    engine: str | None
    """Address for a RemoteEngine; None: an outside model plays the policy."""
    gateway: str
    """URL, without a trailing slash."""
    token: str
    """The run's, for control routes."""
    processes: tuple[Child, ...]


@asynccontextmanager
async def model_service(
    config: RunConfig, folder: RunFolder, prepared: Prepared | None, observer: RunObserver, *, policy_version: int
) -> AsyncIterator[ModelService]:
    """Up while the context is open; without a prepared model an outside one is relayed. Raises ProcessError, ConfigError."""
    token = secrets.token_urlsafe(32)
    async with AsyncExitStack() as stack:
        engine, address = None, None
        if prepared is not None:
            observer.stage("starting", "engine")
            engine, address = await stack.enter_async_context(_engine(config, folder, prepared, policy_version=policy_version))
        observer.stage("starting", "gateway")
        gateway_spec = GatewaySpec(
            folder=prepared.folder if prepared is not None else None,
            model=config.model,
            config=config.gateway,
            engine=address,
            token=token,
            store=str(folder.root.absolute()),
            journal=str(folder.journal),
        )
        log = folder.logs / "gateway.log"
        gateway = await stack.enter_async_context(child("gateway", gateway_process.MODULE, gateway_spec, log=log))
        url = (await gateway.ready(GatewayReady, within_s=READY_S)).url
        yield ModelService(address, url, token, (gateway,) if engine is None else (engine, gateway))


@asynccontextmanager
async def _engine(config: RunConfig, folder: RunFolder, prepared: Prepared, *, policy_version: int) -> AsyncIterator[tuple[Child, str]]:
    """The process and its address."""
    # A unix socket's path is at most some 100 characters long, so it lies in a folder of its own and not in the run's.
    scratch = Path(tempfile.mkdtemp(prefix="agentrl-"))
    spec = EngineSpec(
        folder=prepared.checkpoint or prepared.folder,
        dtype=config.model.dtype,
        config=config.engine,
        address=f"unix:{scratch}/engine",
        scratch=str(scratch),
        policy_version=policy_version,
        seed=config.seed,
    )
    try:
        async with child("engine", engine_process.MODULE, spec, log=folder.logs / "engine.log") as process:
            yield process, (await process.ready(EngineReady, within_s=READY_S)).address
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
