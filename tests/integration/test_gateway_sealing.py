"""Sealing: a blob that could not be written loses no turn, and one episode's sealing waits for no other's."""

from collections.abc import Sequence
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from agentrl.episode import EpisodeKey, EpisodeRecord, Turn
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


async def test_a_body_that_arrives_after_the_sealing_finds_no_session(tmp_path):
    async with scripted_gateway(tmp_path, lambda prompt: "hello") as policy:
        session = await policy.open()
        body = msgspec.json.encode(BODY)
        headers = f"Host: x\r\nAuthorization: Bearer {session.secret}\r\nContent-Length: {len(body)}\r\n"
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{headers}\r\n"
        async with await anyio.connect_tcp(policy.serving.host, policy.serving.port) as client:
            await client.send(head.encode() + body[:5])
            # Another call on the same loop, so that the first one's head has been read.
            assert await call(session) == 200
            await policy.seal()
            await client.send(body[5:])
            assert b" 401 " in await client.receive()
        assert not list(policy.journal_folder.iterdir())


async def test_a_sealing_that_is_given_up_while_it_waits_lets_nobody_in_beside_the_one_at_work(tmp_path, monkeypatch):
    async with scripted_gateway(tmp_path, lambda prompt: "hello") as policy:
        assert await call(await policy.open()) == 200
        gateway = policy.serving.gateway
        inside, most = 0, 0
        release = anyio.Event()

        async def slow(record: EpisodeRecord, turns: Sequence[Turn]) -> tuple[str, int]:
            nonlocal inside, most
            inside, most = inside + 1, max(most, inside + 1)
            await release.wait()
            inside -= 1
            return "episodes/e.episode", 1

        monkeypatch.setattr(gateway._store, "put", slow)
        key = EpisodeKey(epoch=0, task_id="t", member=0)
        record = EpisodeRecord(id="e", key=key, split="train", env="test", env_version="1", task={})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.seal, record)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.01):
                await gateway.seal(record)
            tasks.start_soon(gateway.seal, record)
            await anyio.wait_all_tasks_blocked()
            release.set()
        assert most == 1
        assert not gateway._sealing
