"""What the gateway costs: its own process over the scripted engine, full token bookkeeping, real HTTP.

The load is that of the peers' table: conversations of 20 turns with tools whose requests are 10.6 KB on average. Cost is the CPU time that
the gateway's process says it used, so it does not matter that client and gateway share cores.
"""

import itertools
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
import msgspec

from agentrl.bench.tokens import write_model
from agentrl.bench.whole_path import whole_path
from agentrl.engine.config import ModelConfig
from agentrl.engine.scripted import Latency, ScriptedEngine
from agentrl.episode import EpisodeKey, EpisodeRecord
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.control import Session, SessionSpec
from agentrl.gateway.serve import serve, tune_collector
from agentrl.gateway.tokenizer import Tokenizer as GatewayTokenizer
from agentrl.testing.model import END

TURNS = 20
LONG_SESSIONS, LONG_TURNS = 8, 100
MANY_SESSIONS = 10_000
ENGINE_MS = 50.0
_TOKEN = "bench"
_REPLY = (
    "Let me look at that file first.\n<tool_call>\n"
    '{"name": "read_file", "arguments": {"path": "src/module_%d.py", "limit": 40}}\n</tool_call>'
)
_RESULT = (
    "    def update(self, batch: Batch, step: int) -> Report:\n        loss = self.objective(batch.rows, step)\n"
    "        if not math.isfinite(loss):\n            raise ValueError(f'the loss of step {step} is {loss}')\n"
) * 2
_SYSTEM = "You are a careful engineer who works in a repository with the tools that you are given. Read before you write. " * 18
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} in the repository; the path is relative to its root and may not leave it",
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": kind, "description": f"the {key} to use, as a {kind}"}
                    for key, kind in (("path", "string"), ("limit", "integer"), ("text", "string"))
                },
                "required": ["path"],
            },
        },
    }
    for name in ("read_file", "write_file", "search_text")
]


async def bench() -> dict[str, dict[str, float]]:
    """Medians of alternating rounds where there are two sides."""
    async with _gateway(Latency()) as one:
        await _load(one, sessions=2, turns=TURNS)
        alone, crowd = [], []
        for _ in range(2):
            alone.append(await _load(one, sessions=1, turns=TURNS, repeat=6))
            crowd.append(await _load(one, sessions=256, turns=TURNS, repeat=1))
        long = [await _long_session(one) for _ in range(LONG_SESSIONS)]
    async with _gateway(Latency(call_s=ENGINE_MS / 1000)) as slow:
        added = await _added_ms(slow)
    async with _gateway(Latency()) as many:
        growth = await _growth_mb(many)
    crowd_ms = statistics.median(crowd)
    return {
        "ratios": {"turn_100_vs_turn_2": statistics.median(last for _, last in long) / statistics.median(first for first, _ in long)},
        "figures": {
            "cpu_ms_per_call_1": statistics.median(alone),
            "cpu_ms_per_call_256": crowd_ms,
            "calls_per_s_per_core": 1000 / crowd_ms,
            "added_ms_p99": added,
            "rss_growth_mb_10k_sessions": growth,
            # Read from /proc.
            **({"cpu_ms_per_turn_whole_path": (await whole_path()).total} if sys.platform == "linux" else {}),
        },
    }


class _Gateway:
    """The process and a client for it."""

    def __init__(self, url: str, client: aiohttp.ClientSession, process: anyio.abc.Process) -> None:
        self.url = url
        self._client = client
        self._process = process
        self._episodes = itertools.count()

    async def usage(self) -> dict[str, float]:
        assert self._process.stdin is not None
        await self._process.stdin.send(b"usage\n")
        return dict(await _line(self._process))

    async def open(self) -> tuple[str, Session]:
        episode = f"e{next(self._episodes)}"
        spec = msgspec.msgpack.encode(SessionSpec(episode=episode, agent_run=f"{episode}.main"))
        return episode, msgspec.msgpack.decode(await self._post("/control/sessions", spec, _TOKEN), type=Session)

    async def seal(self, episode: str) -> None:
        key = EpisodeKey(epoch=0, task_id=episode, member=0)
        record = EpisodeRecord(id=episode, key=key, split="train", env="bench", env_version="1", task={})
        await self._post("/control/seal", msgspec.msgpack.encode(record), _TOKEN)

    async def complete(self, session: Session, messages: list[bytes]) -> bytes:
        """The assistant's message, as bytes to send back."""
        body = b'{"model":"policy","messages":[%b],"tools":%b}' % (b",".join(messages), msgspec.json.encode(_TOOLS))
        answer = msgspec.json.decode(await self._post("/v1/chat/completions", body, session.secret))
        return msgspec.json.encode(answer["choices"][0]["message"])

    async def _post(self, path: str, body: bytes, key: str) -> bytes:
        async with self._client.post(self.url + path, data=body, headers={"Authorization": f"Bearer {key}"}) as response:
            data = await response.read()
            if response.status != 200:
                raise RuntimeError(f"the gateway answered {response.status}: {data[:300]!r}")
            return data


async def _converse(gateway: _Gateway, session: Session, *, turns: int) -> AsyncIterator[int]:
    """Numbers of the turns as they are made."""
    messages = [msgspec.json.encode({"role": role, "content": text}) for role, text in (("system", _SYSTEM), ("user", "Find the bug."))]
    for number in range(1, turns + 1):
        reply = await gateway.complete(session, messages)
        yield number
        call_id = msgspec.json.decode(reply)["tool_calls"][0]["id"]
        result = {"role": "tool", "tool_call_id": call_id, "content": f"# result {number}\n{_RESULT}"}
        messages += [reply, msgspec.json.encode(result)]


async def _episode(gateway: _Gateway, *, turns: int, seal: bool) -> None:
    episode, session = await gateway.open()
    async for _ in _converse(gateway, session, turns=turns):
        pass
    if seal:
        await gateway.seal(episode)


async def _load(gateway: _Gateway, *, sessions: int, turns: int, repeat: int = 1) -> float:
    """CPU milliseconds of the gateway a call."""
    before = (await gateway.usage())["cpu_s"]
    for _ in range(repeat):
        async with anyio.create_task_group() as tasks:
            for _ in range(sessions):
                tasks.start_soon(lambda: _episode(gateway, turns=turns, seal=False))
    return 1000 * ((await gateway.usage())["cpu_s"] - before) / (sessions * turns * repeat)


async def _long_session(gateway: _Gateway) -> tuple[float, float]:
    """CPU seconds of about turn 2 and of about turn 100 (five turns each)."""
    _, session = await gateway.open()
    marks: dict[int, float] = {}
    async for number in _converse(gateway, session, turns=LONG_TURNS + 2):
        if number in (1, 6, LONG_TURNS - 3, LONG_TURNS + 2):
            marks[number] = (await gateway.usage())["cpu_s"]
    return marks[6] - marks[1], marks[LONG_TURNS + 2] - marks[LONG_TURNS - 3]


async def _added_ms(gateway: _Gateway, *, sessions: int = 8) -> float:
    """The 99th percentile of what a call takes above the engine's time, at a load that leaves the gateway idle in between."""
    times: list[float] = []

    async def talk() -> None:
        _, session = await gateway.open()
        at = time.perf_counter()
        async for _ in _converse(gateway, session, turns=TURNS):
            times.append(time.perf_counter() - at)
            await anyio.sleep(ENGINE_MS / 1000)
            at = time.perf_counter()

    async with anyio.create_task_group() as tasks:
        for number in range(sessions):
            tasks.start_soon(talk)
            await anyio.sleep(ENGINE_MS / 1000 / sessions * (number % 2))
    return 1000 * sorted(times)[int(0.99 * len(times))] - ENGINE_MS


async def _growth_mb(gateway: _Gateway) -> float:
    """Resident memory that sessions of one turn leave behind after they were sealed."""

    async def some(count: int) -> None:
        limit = anyio.CapacityLimiter(32)

        async def one() -> None:
            async with limit:
                await _episode(gateway, turns=1, seal=True)

        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(one)

    await some(MANY_SESSIONS // 20)
    before = (await gateway.usage())["rss_mb"]
    await some(MANY_SESSIONS)
    return (await gateway.usage())["rss_mb"] - before


@asynccontextmanager
async def _gateway(latency: Latency) -> AsyncIterator[_Gateway]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model", [_SYSTEM, _RESULT, _REPLY, json.dumps(_TOOLS)])
        command = [sys.executable, "-c", "from agentrl.bench.gateway import main; main()", folder, json.dumps(latency.call_s)]
        async with await anyio.open_process(command, stderr=None) as process:
            ready = await _line(process)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as client:
                yield _Gateway(ready["url"], client, process)
            process.terminate()


async def _line(process: anyio.abc.Process) -> Any:
    assert process.stdout is not None
    data = b""
    while not data.endswith(b"\n"):
        data += await process.stdout.receive()
    return json.loads(data)


def main() -> None:
    """The measured process: a gateway that tells its usage whenever it is asked on stdin."""
    anyio.run(_serve, Path(sys.argv[1]), float(json.loads(sys.argv[2])))


async def _serve(folder: Path, call_s: float) -> None:
    tokenizer = GatewayTokenizer.from_folder(folder / "model")
    replies = itertools.cycle([tokenizer.encode(_REPLY % number) for number in range(100)])
    engine = ScriptedEngine(
        lambda prompt: next(replies),
        eos_token_id=tokenizer.added[END],
        context_length=1 << 17,
        latency=Latency(call_s=call_s),
    )
    serving = serve(
        engine,
        model_folder=folder / "model",
        model=ModelConfig(),
        config=GatewayConfig(),
        run_url=str(folder / "run"),
        journal_folder=folder / "journal",
        control_token=_TOKEN,
    )
    async with serving as gateway:
        tune_collector()
        print(json.dumps({"url": gateway.url}), flush=True)
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps({"cpu_s": time.process_time(), "rss_mb": _rss_mb()}), flush=True)


def _rss_mb() -> float:
    """Resident memory now; where the system does not tell, the most there ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
