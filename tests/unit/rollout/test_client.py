"""The lean session client against the true gateway, and against servers that fail."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from agentrl import Agent, Env, Episode, Limits, Task, tool
from agentrl.engine.config import SamplingConfig
from agentrl.env import SessionRequest
from agentrl.env.limits import Bounds
from agentrl.env.messages import user
from agentrl.env.sampling import SamplingOptions
from agentrl.episode import EpisodeRecord
from agentrl.errors import GatewayError, LimitReached
from agentrl.gateway.control import Session, SessionSpec
from agentrl.rollout.client import Door
from agentrl.rollout.run import run_episode
from agentrl.testing.gateway import CONTROL_TOKEN, scripted_gateway
from tests.unit.env.stage import lease

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
TASK = Task("What is 2 + 3?", answer="5")


def request(**bounds: int) -> SessionRequest:
    return SessionRequest(
        episode="e",
        agent_run="e.main0",
        agent="main",
        model="policy",
        trained=True,
        task=TASK,
        sampling=SamplingOptions(),
        bounds=Bounds(**bounds),
    )


def door(url: str) -> Door:
    return Door(url, token=CONTROL_TOKEN, sampling=SamplingConfig(), backoff_s=(0.01, 0.01))


class Adds(Env):
    agent = Agent(system="Use the tool.")

    @tool
    def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    def reward(self, task: Task, ep: Episode) -> float:
        return float(ep.text == task.answer)


class ByHand(Adds):
    """A loop of one's own, over the openai SDK."""

    async def run(self, task: Task, ep: Episode) -> None:
        client = await ep["main"].openai()
        answer = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": str(task.prompt)}])
        ep.children[0].reward = float(answer.choices[0].message.content == task.answer)


async def through_gateway(folder: Path, env: Env, *script: str, limits: Limits | None = None) -> tuple[EpisodeRecord, list[str]]:
    """The record, and the ids of the turns that the gateway sealed."""
    async with scripted_gateway(folder, list(script)) as policy, door(policy.url) as opens:
        task = Task(TASK.prompt, answer=TASK.answer, limits=limits)
        record = await run_episode(env, lease(task), opens)
        _, turns = await policy.seal(record.id)
        assert {turn.placement for turn in turns} <= {"root", "exact"}
        return record, [turn.id for turn in turns]


async def test_a_tool_episode_through_the_true_gateway(tmp_path: Path) -> None:
    record, turns = await through_gateway(tmp_path, Adds(), CALL, "5")
    assert (record.reward, record.terminal, record.errors) == (1.0, "finished", ())
    assert (record.agent_runs[0].turns, record.tool_calls[0].result) == (2, "5")
    assert record.tool_calls[0].turn == turns[0]  # structure and tokens are joined by the response's id
    assert len(turns) == 2


async def test_an_sdk_client_on_a_session_of_its_own(tmp_path: Path) -> None:
    record, turns = await through_gateway(tmp_path, ByHand(), "5")
    assert (record.reward, record.terminal, len(turns)) == (1.0, "finished", 1)


async def test_tokens_per_turn_cuts_and_the_run_ends_by_length(tmp_path: Path) -> None:
    record, _ = await through_gateway(tmp_path, Adds(), "a long answer", limits=Limits(tokens_per_turn=4))
    assert (record.terminal, record.reward, record.errors) == ("length", 0.0, ())


async def test_a_budget_of_tokens_ends_the_run(tmp_path: Path) -> None:
    record, _ = await through_gateway(tmp_path, Adds(), "a long answer", limits=Limits(tokens=4))
    assert (record.terminal, record.errors) == ("tokens", ())


async def test_a_prompt_longer_than_the_context_is_a_limit(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, ["x"], context_length=64) as policy, door(policy.url) as opens:
        record = await run_episode(Adds(), lease(Task("x" * 200, answer="5")), opens)
    assert (record.terminal, record.reward, record.errors) == ("context", 0.0, ())


async def test_the_runs_sampling_is_used_unless_the_agent_has_its_own() -> None:
    seen: list[SessionSpec] = []

    async def open(http: web.Request) -> web.Response:
        seen.append(msgspec.msgpack.decode(await http.read(), type=SessionSpec))
        return packed(Session(secret="s", base_url="http://x/v1"))

    async with served(open) as url, Door(url, token="t", sampling=SamplingConfig(temperature=0.8)) as opens:
        await opens(request(tokens=50))
        await opens(msgspec.structs.replace(request(), sampling=SamplingOptions(temperature=0.5)))
    assert [(spec.temperature, spec.tokens) for spec in seen] == [(0.8, 50), (0.5, None)]


async def test_an_unknown_session_is_refused_at_once(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, ["x"]) as policy, door(policy.url) as opens:
        session = await opens(request())
        await policy.discard("e")
        with pytest.raises(GatewayError, match=r"call 1 of e\.main0: the gateway answered 401"):
            await session.call([user("hi")], [])


class TestFaults:
    async def test_failures_are_tried_again_and_marked_as_retries(self) -> None:
        marks: list[tuple[str | None, str | None]] = []

        async def answer(http: web.Request) -> web.StreamResponse:
            if "control" in http.path:
                return packed(Session(secret="s", base_url=f"http://{http.host}/v1"))
            marks.append((http.headers.get("x-stainless-retry-count"), http.headers.get("idempotency-key")))
            if len(marks) == 1:
                return web.Response(status=503)
            if len(marks) == 2:
                assert http.transport is not None
                http.transport.abort()
            return completion("ok")

        async with served(answer) as url, door(url) as opens:
            reply = await (await opens(request())).call([user("hi")], [])
        assert (reply.turn, reply.text, reply.completion_tokens) == ("t9", "ok", 7)
        assert marks == [(None, "e.main0.1"), ("1", "e.main0.1"), ("2", "e.main0.1")]

    async def test_a_gateway_that_stays_away_is_an_error(self) -> None:
        async def away(http: web.Request) -> web.Response:
            return web.Response(status=500, text="on fire")

        async with served(away) as url, door(url) as opens:
            with pytest.raises(GatewayError, match=r"open session e\.main0: no answer .* after 3 attempts; last: it answered 500: on fire"):
                await opens(request())

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"choices": []}, "is not a chat completion"),
            ({"id": "chatcmpl-1", "choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]}, "ended with 'abort'"),
        ],
    )
    async def test_what_is_no_completion_is_an_error(self, body: dict[str, object], message: str) -> None:
        async def answer(http: web.Request) -> web.Response:
            if "control" in http.path:
                return packed(Session(secret="s", base_url=f"http://{http.host}/v1"))
            return web.json_response(body)

        async with served(answer) as url, door(url) as opens:
            session = await opens(request())
            with pytest.raises(GatewayError, match=message):
                await session.call([user("hi")], [])

    async def test_a_full_context_is_a_limit(self) -> None:
        async def answer(http: web.Request) -> web.Response:
            if "control" in http.path:
                return packed(Session(secret="s", base_url=f"http://{http.host}/v1"))
            return web.json_response({"error": {"code": "context_length_exceeded", "message": "full"}}, status=400)

        async with served(answer) as url, door(url) as opens:
            session = await opens(request())
            with pytest.raises(LimitReached) as limit:
                await session.call([user("hi")], [])
        assert limit.value.reason == "context"


def packed(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.msgpack.encode(value))


def completion(text: str) -> web.Response:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return web.json_response({"id": "chatcmpl-t9", "choices": [choice], "usage": {"completion_tokens": 7}})


@asynccontextmanager
async def served(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
