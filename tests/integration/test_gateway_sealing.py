"""Sealing: a blob that could not be written loses no turn, and one episode's sealing waits for no other's."""

from typing import Any

import aiohttp
import anyio
import pytest

from agentrl.gateway import store
from agentrl.gateway.control import Session
from agentrl.testing.gateway import scripted_gateway

BODY: Any = {"model": "policy", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def call(session: Session) -> int:
    async with aiohttp.ClientSession() as client:
        headers = {"Authorization": f"Bearer {session.secret}"}
        async with client.post(f"{session.base_url}/chat/completions", json=BODY, headers=headers) as answer:
            return answer.status


@pytest.mark.parametrize("on_the_loop", [True, False])
async def test_sealing_again_after_a_failed_write_finds_the_turns(tmp_path, monkeypatch, on_the_loop):
    monkeypatch.setattr(store, "LOOP_TOKENS", 50_000 if on_the_loop else 0)
    async with scripted_gateway(tmp_path, lambda prompt: "hello") as policy:
        session = await policy.open()
        assert await call(session) == 200
        (tmp_path / "run").mkdir(exist_ok=True)
        in_the_way = tmp_path / "run" / "episodes"
        in_the_way.write_text("a file where the folder should be")
        with pytest.raises(RuntimeError, match=r"500 .*write episode e"):
            await policy.seal()
        assert await call(session) == 401
        in_the_way.unlink()
        sealed, turns = await policy.seal()
        assert [turn.reply.content for turn in turns if turn.reply] == ["hello"]
        again, _ = await policy.seal()
        assert again == sealed


async def test_the_same_episode_sealed_twice_at_once_is_one_blob(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LOOP_TOKENS", 0)
    async with scripted_gateway(tmp_path, lambda prompt: "hello") as policy:
        assert await call(await policy.open()) == 200
        answers = []

        async def seal() -> None:
            answers.append((await policy.seal())[0])

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(seal)
        assert answers == [answers[0]] * 4
        assert answers[0].runs["main"].turns == 1
