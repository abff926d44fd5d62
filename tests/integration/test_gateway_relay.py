"""Agents with an outside model: relayed with the key, recorded as turns without tokens, never trained."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.gateway.config import GatewayConfig
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
        with pytest.raises(RuntimeError, match=r"gateway\.outside_url"):
            await policy.open(policy="openai/their-model")


async def test_an_endpoint_that_is_down_is_a_502(tmp_path: Path) -> None:
    config = GatewayConfig(outside_url="http://127.0.0.1:9/v1")
    async with scripted_gateway(tmp_path, [], config=config) as policy:
        session = await policy.open(policy="openai/m")
        headers = {"Authorization": f"Bearer {session.secret}"}
        url = f"{session.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as client, client.post(url, json={"messages": [USER]}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "outside_failed")
