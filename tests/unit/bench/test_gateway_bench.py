"""The gateway's benchmark measures what it says: the peers' load, through the true gateway in a process of its own."""

import msgspec
import pytest

from agentrl.bench import gateway as bench
from agentrl.engine.scripted import Latency


async def test_the_load_is_that_of_the_peers_table(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    post = bench._Gateway._post

    async def weigh(self: bench._Gateway, path: str, body: bytes, key: str) -> bytes:
        answer = await post(self, path, body, key)
        if path == "/v1/chat/completions":
            sizes.append(len(body))
            assert msgspec.json.decode(answer)["choices"][0]["finish_reason"] == "tool_calls"
        return answer

    monkeypatch.setattr(bench._Gateway, "_post", weigh)
    async with bench._gateway(Latency()) as gateway:
        assert await bench._load(gateway, sessions=2, turns=bench.TURNS) > 0
        assert (await gateway.usage())["rss_mb"] > 0
    assert len(sizes) == 2 * bench.TURNS
    assert sum(sizes) / len(sizes) == pytest.approx(10_600, rel=0.05)
