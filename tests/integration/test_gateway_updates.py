"""Weight updates and lost engines in the middle of a call: the scaffold sees one whole answer, the books tell the truth per token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI, InternalServerError

from agentrl.engine.base import PauseMode
from agentrl.engine.scripted import Latency
from agentrl.episode import Span
from agentrl.gateway import draw
from agentrl.gateway.control import Session
from agentrl.testing.gateway import ScriptedPolicy, scripted_gateway
from agentrl.weights.update import WeightUpdate
from tests.integration.gateway_books import eventually, labels, sampled

MESSAGES: Any = [{"role": "user", "content": "x"}]
SLOW = Latency(token_s=0.005)


@asynccontextmanager
async def sdk(session: Session) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.secret, max_retries=0) as client:
        yield client


async def update(policy: ScriptedPolicy, mode: PauseMode, version: int) -> None:
    new = WeightUpdate(version=version, transport="shared", locator="", tensors=())
    await policy.engine.prepare(new)
    await policy.engine.pause(mode)
    await policy.engine.load(new)
    await policy.engine.resume()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["abort", "keep"])
async def test_an_update_in_mid_call_is_invisible(tmp_path: Path, mode: PauseMode, stream: bool) -> None:
    async with scripted_gateway(tmp_path, ["abcdefghijklmnop"], latency=SLOW, policy_version=3) as policy:
        session = await policy.open()
        texts: list[str] = []

        async def call() -> None:
            async with sdk(session) as client:
                if not stream:
                    answer = await client.chat.completions.create(model="policy", messages=MESSAGES)
                    texts.append(answer.choices[0].message.content or "")
                    return
                chunks = await client.chat.completions.create(model="policy", messages=MESSAGES, stream=True)
                texts.append("".join([chunk.choices[0].delta.content or "" async for chunk in chunks]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await sampled(policy, 4)
            await update(policy, mode, 5)
        sealed, (turn,) = await policy.seal()
        assert texts == ["abcdefghijklmnop"]
        old, new = turn.spans
        assert (old.policy_version, new.policy_version) == (3, 5)
        assert (old.start, old.end, new.end) == (0, new.start, 17)
        assert 4 <= old.end <= 16
        assert turn.mask.all()
        assert turn.finish_reason == "stop"
        assert sealed.runs["main"].versions == {3: old.end, 5: 17 - old.end}
        assert (await policy.engine.status()).sampled_tokens == 17, "nothing was sampled twice"


async def test_two_updates_and_a_token_limit(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, ["abcdefghijklmnop"], latency=SLOW) as policy:
        session = await policy.open(tokens_per_turn=12)
        async with sdk(session) as client, anyio.create_task_group() as tasks:
            answers: list[Any] = []

            async def call() -> None:
                answers.append(await client.chat.completions.create(model="policy", messages=MESSAGES))

            tasks.start_soon(call)
            for count, version in ((3, 1), (7, 2)):
                await sampled(policy, count)
                await update(policy, "abort", version)
        assert (answers[0].choices[0].message.content, answers[0].choices[0].finish_reason) == ("abcdefghijkl", "length")
        _, (turn,) = await policy.seal()
        assert [span.policy_version for span in turn.spans] == [0, 1, 2]
        assert [len(prompt) for prompt in policy.engine.prompts] == [len(turn.prompt_ids) + span.start for span in turn.spans]


async def test_a_call_that_comes_during_a_pause_waits(tmp_path: Path) -> None:
    async with scripted_gateway(tmp_path, ["hi"]) as policy:
        session = await policy.open()
        await policy.engine.pause("abort")
        async with sdk(session) as client, anyio.create_task_group() as tasks:

            async def call() -> None:
                answer = await client.chat.completions.create(model="policy", messages=MESSAGES)
                assert answer.choices[0].message.content == "hi"

            tasks.start_soon(call)

            async def waits() -> bool:
                return (await policy.engine.status()).waiting > 0

            await eventually(waits)
            await policy.engine.resume()


@pytest.mark.parametrize("updated", [False, True])
async def test_tokens_of_a_dead_stream_have_a_version_only_without_an_update(tmp_path: Path, updated: bool) -> None:
    async with scripted_gateway(tmp_path, ["abcdef"], policy_version=2) as policy:
        session = await policy.open()
        policy.engine.fail(after_tokens=3)
        async with sdk(session) as client:
            stream = await client.chat.completions.create(model="policy", messages=MESSAGES, stream=True)
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if updated and text == "abc":
                    await update(policy, "keep", 4)
                    updated = False
                    was_updated = True
        assert text == "abcdef"
        sealed, (turn,) = await policy.seal()
        if "was_updated" in locals():
            assert turn.spans == (Span(4, 3, 7),)
            assert turn.mask.tolist() == [False] * 3 + [True] * 4
            assert sealed.runs["main"].untrainable == {"no_version": 3}
        else:
            assert turn.spans == (Span(2, 0, 3), Span(2, 3, 7))
            assert turn.mask.all()


async def test_an_engine_that_stays_lost_fails_the_call_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "LOST_S", 0.2)
    async with scripted_gateway(tmp_path, []) as policy:
        session = await policy.open()
        async with sdk(session) as client:
            with pytest.raises(InternalServerError, match="no more completions"):
                await client.chat.completions.create(model="policy", messages=MESSAGES)
        assert (await policy.status()).errors == {"engine_failed": 1}
        _, turns = await policy.seal()
        assert labels(turns) == []
