"""Agents with an outside model: relayed with the key, recorded as turns without tokens, never trained."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.engine.config import ModelConfig, SamplingConfig
from agentrl.env import Env, Task
from agentrl.episode import EpisodeRecord, Sealed, read_record, read_turns
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.serve import serve
from agentrl.gateway.store import EpisodeStore
from agentrl.rollout.client import Door
from agentrl.rollout.sealer import GatewaySealer
from agentrl.testing.episode import play
from agentrl.testing.gateway import scripted_gateway

USER: Any = {"role": "user", "content": "x"}
TOOL: Any = {"type": "function", "function": {"name": "calc", "description": "d", "parameters": {}}}


def outside(answers: list[Any], seen: list[Any]) -> web.Application:
    """An endpoint of somebody else's that answers in turn."""

    async def complete(request: web.Request) -> web.Response:
        seen.append((request.headers["Authorization"], await request.json()))
        answer = answers.pop(0)
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "slow down"}}, status=answer)
        return web.json_response(
            {"choices": [{"message": answer, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    return app


async def test_an_outside_model_is_relayed_and_recorded(tmp_path: Path) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "calc", "arguments": "{}"}}]
    answers: list[Any] = [{"content": None, "tool_calls": calls}, {"content": "two"}, 429, {"content": "again"}]
    seen: list[Any] = []
    async with TestServer(outside(answers, seen)) as server:
        config = GatewayConfig(outside_url=str(server.make_url("/v1")), outside_key="k")
        async with scripted_gateway(tmp_path, [], config=config) as policy:
            session = await policy.open(policy="openai/their-model", trained=False, temperature=0.5)
            headers = {"Authorization": f"Bearer {session.secret}"}
            url = f"{session.base_url}/chat/completions"
            async with aiohttp.ClientSession(headers=headers) as client:

                async def call(messages: list[Any], **more: Any) -> tuple[int, str]:
                    async with client.post(url, json={"model": "m", "messages": messages, "tools": [TOOL], **more}) as answer:
                        return answer.status, await answer.text()

                status, text = await call([USER])
                assert status == 200
                assert '"finish_reason":"stop"' in text
                assert '"total_tokens":7' in text
                history = [USER, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
                status, text = await call(history, stream=True)
                assert status == 200
                assert '"content":"two"' in text
                assert (await call(history))[0] == 429
                assert (await call(history))[0] == 200
            sealed, turns = await policy.seal()
    assert seen[0][0] == "Bearer k"
    assert (seen[0][1]["model"], seen[0][1]["temperature"]) == ("their-model", 0.5)
    assert seen[1][1]["messages"][1]["tool_calls"] == calls
    assert [turn.policy for turn in turns] == ["openai/their-model"] * 3
    assert [turn.parent and turn.parent.turn for turn in turns] == [None, turns[0].id, turns[0].id]
    assert [[m.role for m in turn.messages] for turn in turns] == [["user"], ["tool"], ["tool"]]
    assert (sealed.runs["main"].sampled, sealed.runs["main"].turns) == (0, 3)


async def test_an_outside_model_needs_an_endpoint(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, []) as policy:
        with pytest.raises(RuntimeError, match=r"400 .*gateway\.outside_url"):
            await policy.open(policy="openai/their-model")


async def test_an_endpoint_that_is_down_is_a_502(tmp_path: Path) -> None:
    config = GatewayConfig(outside_url="http://127.0.0.1:9/v1")
    async with scripted_gateway(tmp_path, [], config=config) as policy:
        session = await policy.open(policy="openai/m")
        headers = {"Authorization": f"Bearer {session.secret}"}
        url = f"{session.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as client, client.post(url, json={"messages": [USER]}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "outside_failed")


class Parrot(Env):
    """Pays for one word."""

    def reward(self, task: Task, ep: Any) -> float:
        return float(ep.text == "polly")


async def _played(folder: Path, config: GatewayConfig) -> tuple[EpisodeRecord, Sealed]:
    """One episode against a gateway that has no engine and no model."""
    async with (
        serve(
            None,
            model_folder=None,
            model=ModelConfig(),
            config=config,
            run_url=str(folder / "run"),
            journal_folder=folder / "journal",
            control_token="t",
        ) as serving,
        Door(serving.url, token="t", sampling=SamplingConfig(), backoff_s=()) as door,
        GatewaySealer(serving.url, token="t") as sealer,
    ):
        record = await play(Parrot(), Task("Say polly."), door)
        assert (await sealer.status()).calls == 1
        return record, await sealer.seal(record)


async def test_an_outside_model_plays_the_policy_without_a_local_one(tmp_path: Path) -> None:
    seen: list[Any] = []
    async with TestServer(outside([{"content": "polly"}], seen)) as server:
        config = GatewayConfig(outside_url=str(server.make_url("/v1")), outside_key="k", outside_model="their-model")
        record, sealed = await _played(tmp_path, config)
    assert record.reward == 1.0
    assert (seen[0][0], seen[0][1]["model"]) == ("Bearer k", "their-model")
    with EpisodeStore(str(tmp_path / "run")).open(sealed.handle) as file:
        read_record(file)
        (turn,) = read_turns(file)
    assert (turn.policy, len(turn.completion_ids), turn.reply and turn.reply.content) == ("openai/their-model", 0, "polly")


async def test_a_gateway_with_neither_a_model_nor_an_outside_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.outside_model"):
        await _played(tmp_path, GatewayConfig(outside_url="http://127.0.0.1:9/v1"))
