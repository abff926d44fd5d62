"""The true gateway over the scripted engine, for tests of anything that talks to a policy.

async with scripted_gateway(tmp_path, ["hello"]) as policy:
    session = await policy.open("episode-1", "main")
    client = AsyncOpenAI(base_url=session.base_url, api_key=session.secret)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agentrl.engine.config import ModelConfig
from agentrl.engine.scripted import Latency, Script, ScriptedEngine
from agentrl.episode import EpisodeKey, EpisodeRecord, Sealed, Turn, read_record, read_turns
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.control import Discard, GatewayStatus, Session, SessionSpec
from agentrl.gateway.serve import Serving, serve
from agentrl.gateway.store import EpisodeStore
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.testing.model import CHATML_TOOLS, END, byte_ids, write_byte_model

CONTROL_TOKEN = "control-token"


@dataclass(frozen=True)
class ScriptedPolicy:
    """A running gateway, what is behind it, and the control messages that the controller would send."""

    serving: Serving
    engine: ScriptedEngine
    tokenizer: Tokenizer
    store: EpisodeStore
    journal_folder: Path
    _client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.serving.url

    async def open(self, episode: str = "e", agent_run: str = "main", **spec: Any) -> Session:
        """`spec`: further fields of SessionSpec."""
        body = SessionSpec(episode=episode, agent_run=agent_run, **spec)
        return msgspec.msgpack.decode(await self._post("sessions", body), type=Session)

    async def seal(self, episode: str = "e") -> tuple[Sealed, list[Turn]]:
        """The answer, and the turns as they were stored."""
        key = EpisodeKey(epoch=0, task_id="t", member=0)
        record = EpisodeRecord(id=episode, key=key, split="train", env="test", env_version="1", task={})
        sealed = msgspec.msgpack.decode(await self._post("seal", record), type=Sealed)
        with self.store.open(sealed.handle) as file:
            read_record(file)
            return sealed, list(read_turns(file))

    async def discard(self, episode: str = "e") -> None:
        await self._post("discard", Discard(episode))

    async def status(self) -> GatewayStatus:
        async with self._client.get(f"{self.url}/control/status") as response:
            return msgspec.msgpack.decode(await response.read(), type=GatewayStatus)

    async def _post(self, name: str, body: msgspec.Struct) -> bytes:
        async with self._client.post(f"{self.url}/control/{name}", data=msgspec.msgpack.encode(body)) as response:
            data = await response.read()
            if response.status != 200:
                raise RuntimeError(f"{name}: {response.status} {data.decode(errors='replace')}")
            return data


@asynccontextmanager
async def scripted_gateway(
    folder: Path,
    script: Script,
    *,
    model: ModelConfig | None = None,
    config: GatewayConfig | None = None,
    latency: Latency | None = None,
    template: str = CHATML_TOOLS,
    markup: bool = True,
    context_length: int = 8192,
    policy_version: int = 0,
    engine_class: type[ScriptedEngine] = ScriptedEngine,
) -> AsyncIterator[ScriptedPolicy]:
    """`script` speaks text of a byte model (see `testing.model`), or its token ids."""
    tokenizer = Tokenizer.from_folder(write_byte_model(folder / "model", template=template, markup=markup))
    engine = engine_class(
        script,
        codec=tokenizer,
        eos_token_id=byte_ids()[END],
        context_length=context_length,
        latency=latency,
        policy_version=policy_version,
    )
    serving = serve(
        engine,
        model_folder=folder / "model",
        model=model or ModelConfig(),
        config=config or GatewayConfig(),
        run_url=str(folder / "run"),
        journal_folder=folder / "journal",
        control_token=CONTROL_TOKEN,
    )
    headers = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
    async with serving as served, aiohttp.ClientSession(headers=headers) as client:
        yield ScriptedPolicy(served, engine, tokenizer, EpisodeStore(str(folder / "run")), folder / "journal", client)
