"""Main of the gateway process."""

from contextlib import nullcontext
from pathlib import Path

import anyio
import msgspec

from agentrl.engine.config import ModelConfig
from agentrl.engine.remote import RemoteEngine
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.serve import serve, tune_collector
from agentrl.runtime.child import read_spec, tell
from agentrl.runtime.log import log_to_stderr

MODULE = "agentrl.runtime.gateway_process"


class GatewaySpec(msgspec.Struct, frozen=True):
    folder: str | None
    """Of the model: tokenizer and chat template; None: an outside model plays the policy."""
    model: ModelConfig
    config: GatewayConfig
    engine: str | None
    """Address of the engine; None: as above."""
    token: str
    """The run's, for the control routes."""
    store: str
    """fsspec URL of the run's episode blobs."""
    journal: str
    """Folder of the turns that are not sealed yet."""


class GatewayReady(msgspec.Struct, frozen=True):
    url: str


async def run(spec: GatewaySpec) -> None:
    async with (
        RemoteEngine(spec.engine) if spec.engine else nullcontext() as engine,
        serve(
            engine,
            model_folder=Path(spec.folder) if spec.folder else None,
            model=spec.model,
            config=spec.config,
            run_url=spec.store,
            journal_folder=Path(spec.journal),
            control_token=spec.token,
        ) as serving,
    ):
        tune_collector()
        tell(GatewayReady(url=serving.url))
        await anyio.sleep_forever()


if __name__ == "__main__":
    log_to_stderr("gateway")
    anyio.run(run, read_spec(GatewaySpec))
