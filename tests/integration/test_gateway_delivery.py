"""Connections that break, clients that retry: nothing is sampled twice by mistake, and what nobody saw is not trained."""

from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from msgspec.structs import replace

from agentrl.engine.scripted import Latency
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.control import Session
from agentrl.testing.gateway import ScriptedPolicy, scripted_gateway
from tests.integration.gateway_books import check_books, eventually, labels, sampled

BODY: Any = {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
SLOW = Latency(token_s=0.01)


async def post(session: Session, body: Any = BODY, **headers: str) -> Any:
    sent = {"Authorization": f"Bearer {session.secret}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with aiohttp.ClientSession() as client, client.post(f"{session.base_url}/chat/completions", json=body, headers=sent) as answer:
        return await answer.json()


async def break_off(policy: ScriptedPolicy, session: Session, *, stream: bool, after_tokens: int = 3) -> None:
    """Call, and cut the connection once some tokens were sampled."""
    before = (await policy.engine.status()).sampled_tokens
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await post(session, {**BODY, "stream": stream})

            tasks.start_soon(call)
            await sampled(policy, before + after_tokens)
            scope.cancel()


async def idle(policy: ScriptedPolicy) -> None:
    async def empty() -> bool:
        return not (await policy.status()).in_flight

    await eventually(empty)


async def test_a_client_that_is_gone_cancels_the_engine_and_leaves_untrained_data(tmp_path: Path) -> None:
    config = GatewayConfig(linger_s=0.0)
    async with scripted_gateway(tmp_path, ["a" * 500, "b"], latency=SLOW, config=config) as policy:
        session = await policy.open()
        await break_off(policy, session, stream=True)
        await idle(policy)
        assert (await policy.engine.status()).running == 0
        assert (await policy.engine.status()).sampled_tokens < 500
        answer = await post(session)
        assert answer["choices"][0]["message"]["content"] == "b"
        sealed, turns = await policy.seal()
        check_books(policy, turns)
        partial, whole = turns
        assert (partial.finish_reason, partial.reply, partial.mask.any()) == ("abort", None, False)
        assert sealed.runs["main"].untrainable == {"abort": len(partial.completion_ids)}
        assert whole.parent is not None
        assert len(whole.prompt_ids) == 0


async def test_an_equal_body_is_a_new_turn_unless_it_is_marked_as_a_retry(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        session = await policy.open()
        first = await post(session)
        assert (await post(session))["id"] != first["id"]
        newest = await post(session, x_stainless_retry_count="0")
        assert (await post(session, x_stainless_retry_count="1"))["id"] == newest["id"]
        keyed = await post(session, idempotency_key="k")
        assert keyed["id"] != newest["id"]
        assert await post(session, idempotency_key="k") == keyed
        assert (await post(session, idempotency_key="other"))["id"] != keyed["id"]
        _, turns = await policy.seal()
        assert len(turns) == 5


async def test_a_marked_retry_joins_the_call_in_flight(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, ["abcdefgh"], latency=SLOW) as policy:
        session = await policy.open()
        answers: list[Any] = []

        async def call(retry: str) -> None:
            answers.append(await post(session, x_stainless_retry_count=retry))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "0")
            await sampled(policy, 2)
            tasks.start_soon(call, "1")
        assert answers[0] == answers[1]
        assert len((await policy.seal())[1]) == 1


async def test_a_broken_delivery_is_given_again_whole(tmp_path: Path) -> None:
    config = GatewayConfig(linger_s=20.0)
    async with scripted_gateway(tmp_path, ["abcdefgh"], latency=SLOW, config=config) as policy:
        session = await policy.open()
        await break_off(policy, session, stream=False)
        answer = await post(session, {**BODY, "stream": False})
        assert answer["choices"][0]["message"]["content"] == "abcdefgh"
        sealed, turns = await policy.seal()
        check_books(policy, turns)
        assert (labels(turns), sealed.runs["main"].untrainable) == (["root"], {})
        assert (await policy.engine.status()).sampled_tokens == 9


async def test_a_stream_that_broke_is_replayed_from_its_beginning(tmp_path: Path) -> None:
    config = GatewayConfig(linger_s=20.0)
    async with scripted_gateway(tmp_path, ["abcdefgh"], latency=SLOW, config=config) as policy:
        session = await policy.open()
        await break_off(policy, session, stream=True)
        sent = {"Authorization": f"Bearer {session.secret}"}
        url = f"{session.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=sent) as client, client.post(url, json={**BODY, "stream": True}) as answer:
            text = await answer.text()
        assert text.endswith("data: [DONE]\n\n")
        assert "".join(letter for letter in "abcdefgh" if f'"content":"{letter}"' in text) == "abcdefgh"
        assert len((await policy.seal())[1]) == 1


async def test_what_was_never_delivered_is_not_trained(tmp_path: Path) -> None:
    config = GatewayConfig(linger_s=20.0)
    async with scripted_gateway(tmp_path, ["abcdefgh", "next"], latency=SLOW, config=config) as policy:
        session = await policy.open()
        await break_off(policy, session, stream=False)
        await idle(policy)
        other = {"model": "policy", "messages": [{"role": "user", "content": "y"}]}
        await post(session, other)
        sealed, turns = await policy.seal()
        assert [turn.mask.any() for turn in turns] == [False, True]
        assert sealed.runs["main"].untrainable == {"undelivered": 9}


async def test_a_new_try_at_the_same_point_does_not_make_the_undelivered_one_trained(tmp_path: Path) -> None:
    config = GatewayConfig(linger_s=20.0)
    async with scripted_gateway(tmp_path, ["abcdefgh", "next"], latency=SLOW, config=config) as policy:
        session = await policy.open()
        await break_off(policy, session, stream=False)
        await idle(policy)
        await post(session, {**BODY, "user": "another body"})
        sealed, (lost, seen) = await policy.seal()
        assert seen.parent is not None
        assert seen.parent.turn == lost.id  # they share the prompt
        assert (lost.mask.any(), seen.mask.all()) == (False, True)
        assert sealed.runs["main"].untrainable == {"undelivered": 9}


async def test_what_the_scaffold_goes_on_from_was_delivered(tmp_path: Path) -> None:
    config = GatewayConfig(linger_s=20.0)
    async with scripted_gateway(tmp_path, ["abcdefgh", "next"], latency=SLOW, config=config) as policy:
        session = await policy.open()
        await break_off(policy, session, stream=True, after_tokens=8)
        await idle(policy)
        messages = [*BODY["messages"], {"role": "assistant", "content": "abcdefgh"}, {"role": "user", "content": "y"}]
        await post(session, {"model": "policy", "messages": messages})
        sealed, turns = await policy.seal()
        assert labels(turns) == ["root", "exact"]
        assert sealed.runs["main"].untrainable == {}


async def test_waiting_clients_are_kept_alive(tmp_path: Path) -> None:
    config = GatewayConfig(keepalive_s=0.02)
    async with scripted_gateway(tmp_path, lambda prompt: "abc", config=config) as policy:
        session = await policy.open()
        sent = {"Authorization": f"Bearer {session.secret}"}
        async with aiohttp.ClientSession(headers=sent) as client:
            for stream, comfort in ((False, b" "), (True, b": waiting\n\n")):
                await policy.engine.pause("keep")
                async with client.post(f"{session.base_url}/chat/completions", json={**BODY, "stream": stream}) as answer:
                    with anyio.fail_after(20):
                        await answer.content.readuntil(comfort)
                    await policy.engine.resume()
                    rest = await answer.read()
                assert b"abc" in rest
                assert answer.status == 200


async def test_sealing_ends_calls_in_flight(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, ["a" * 500], latency=SLOW) as policy:
        session = await policy.open()
        sent = {"Authorization": f"Bearer {session.secret}"}
        url = f"{session.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=sent) as client, client.post(url, json={**BODY, "stream": True}) as answer:
            await sampled(policy, 3)
            _, turns = await policy.seal()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        assert [turn.finish_reason for turn in turns] == ["abort"]


async def test_an_episode_journalled_by_a_gateway_that_died_can_still_be_sealed(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        session = await policy.open("e/1")
        await post(session)
        await post(session)
    async with scripted_gateway(tmp_path, lambda prompt: "abc") as policy:
        assert (await post(replace(session, base_url=f"{policy.url}/v1")))["error"]["code"] == "invalid_api_key"
        await post(await policy.open("e/1", "second"))
        sealed, turns = await policy.seal("e/1")
        assert {run: stats.turns for run, stats in sealed.runs.items()} == {"second": 1, "main": 2}
        assert len(turns) == 3


async def test_a_model_that_is_not_trained_leaves_no_trainable_token(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, ["abc"]) as policy:
        await post(await policy.open(trained=False))
        sealed, _ = await policy.seal()
        assert (sealed.runs["main"].versions, sealed.runs["main"].untrainable) == ({}, {"untrained": 4})
