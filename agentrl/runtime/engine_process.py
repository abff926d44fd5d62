"""Main of the engine process: one embedded model behind a socket."""

from pathlib import Path

import anyio
import msgspec

from agentrl.engine.config import EngineConfig
from agentrl.engine.serve import serve
from agentrl.runtime.child import read_spec, tell
from agentrl.runtime.log import log_to_stderr

MODULE = "agentrl.runtime.engine_process"


class EngineSpec(msgspec.Struct, frozen=True):
    folder: str
    """Of the model, in Hugging Face format."""
    dtype: str
    config: EngineConfig
    address: str
    """`unix:PATH`"""
    scratch: str
    """The folder of that path."""
    policy_version: int
    """Under which the folder's weights are served."""
    seed: int


class EngineReady(msgspec.Struct, frozen=True):
    address: str
    context_length: int


async def run(spec: EngineSpec) -> None:
    # torch is loaded here, after the parent's pipe is watched.
    from agentrl.engine.torch.engine import TorchEngine

    async with (
        TorchEngine.open(Path(spec.folder), spec.config, dtype=spec.dtype, policy_version=spec.policy_version, seed=spec.seed) as engine,
        anyio.create_task_group() as tasks,
    ):
        address = await tasks.start(serve, engine, spec.address)
        tell(EngineReady(address=address, context_length=engine.capabilities().context_length))


if __name__ == "__main__":
    log_to_stderr("engine")
    anyio.run(run, read_spec(EngineSpec, scratch=lambda spec: spec.scratch))
