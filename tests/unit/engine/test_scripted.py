"""The scripted engine keeps every promise of the protocol, so what runs over it has met a real engine."""

import anyio
import pytest

from agentrl.engine.base import Chunk
from agentrl.engine.scripted import ByteCodec, Latency, ScriptedEngine, scripted_logprob
from agentrl.episode import Sampling, Span
from agentrl.errors import ContextOverflow, EngineError, EngineQuarantined, WeightError
from agentrl.weights.update import WeightUpdate

EOS = 256


async def collect(
    engine: ScriptedEngine, prompt: list[int], *, max_tokens: int = 64, stream: bool = True, deadline_s: float = 60
) -> list[Chunk]:
    chunks = engine.generate(prompt, Sampling(max_tokens=max_tokens), session="s", deadline_s=deadline_s, stream=stream)
    return [chunk async for chunk in chunks]


def update(version: int, base: int | None = None) -> WeightUpdate:
    return WeightUpdate(version=version, transport="shared", locator="", tensors=(), base=base)


async def publish(engine: ScriptedEngine, version: int) -> None:
    await engine.prepare(update(version))
    await engine.load(update(version))
    await engine.resume()


def ids(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_says_its_script_in_order_with_stated_logprobs() -> None:
    codec = ByteCodec(["<eos>"])
    engine = ScriptedEngine(["hi", [1, 2, EOS]], codec=codec, eos_token_id=EOS, policy_version=3)
    (chunk,) = await collect(engine, [9], stream=False)
    assert codec.decode(chunk.token_ids) == "hi<eos>"
    assert chunk.logprobs == tuple(scripted_logprob(i, token) for i, token in enumerate(chunk.token_ids))
    assert (chunk.finish_reason, chunk.spans) == ("stop", (Span(3, 0, 3),))
    assert ids(await collect(engine, [9])) == [1, 2, EOS]
    with pytest.raises(EngineError, match="no more completions"):
        await collect(engine, [9])


async def test_limits_cut_with_reason_length_and_a_full_context_overflows() -> None:
    engine = ScriptedEngine(lambda prompt: range(10, 20), context_length=8)
    assert [(c.token_ids, c.finish_reason) for c in await collect(engine, [1], max_tokens=3)] == [((10, 11, 12), "length")]
    assert len(ids(await collect(engine, [1] * 6))) == 2
    with pytest.raises(ContextOverflow, match="8 tokens"):
        await collect(engine, [1] * 8)


async def paused_in_mid_call(engine: ScriptedEngine, mode: str) -> list[Chunk]:
    """Pause after the second token, load version 1, resume; the whole call's chunks."""
    seen: list[Chunk] = []
    async with anyio.create_task_group() as tasks:
        async for chunk in engine.generate([7], Sampling(max_tokens=64), session="s", deadline_s=60):
            seen.append(chunk)
            if len(seen) == 2:

                async def update_weights() -> None:
                    await engine.pause(mode)  # type: ignore[arg-type]
                    await publish(engine, 1)

                tasks.start_soon(update_weights)
    return seen


async def test_keep_pauses_and_goes_on_under_the_new_version() -> None:
    engine = ScriptedEngine(lambda prompt: [1, 2, 3, 4], latency=Latency(token_s=0.01))
    seen = await paused_in_mid_call(engine, "keep")
    assert ids(seen) == [1, 2, 3, 4]
    assert seen[-1].spans == (Span(0, 0, 2), Span(1, 2, 4))
    assert seen[-1].kv_oldest_version == 0


async def test_abort_ends_now_and_the_exact_prefix_goes_on() -> None:
    engine = ScriptedEngine([[1, 2, 3, 4]], latency=Latency(token_s=0.01))
    seen = await paused_in_mid_call(engine, "abort")
    assert (ids(seen), seen[-1].finish_reason) == ([1, 2], "abort")
    rest = await collect(engine, [7, 1, 2])
    assert (ids(rest), rest[-1].finish_reason, rest[-1].spans) == ([3, 4], "stop", (Span(1, 0, 2),))


async def test_drain_lets_calls_finish_under_the_old_version() -> None:
    engine = ScriptedEngine(lambda prompt: [1, 2, 3, 4], latency=Latency(token_s=0.01))
    assert (await paused_in_mid_call(engine, "drain"))[-1].spans == (Span(0, 0, 4),)
    assert (await collect(engine, [7]))[-1].spans == (Span(1, 0, 4),)


async def test_a_new_call_waits_for_resume_or_its_deadline() -> None:
    engine = ScriptedEngine(lambda prompt: [1])
    await engine.pause("keep")
    with pytest.raises(EngineError, match="deadline"):
        await collect(engine, [7], deadline_s=0.01)
    assert (await engine.status()).waiting == 0
    await engine.resume()
    assert ids(await collect(engine, [7])) == [1]


async def test_loads_are_idempotent_ordered_and_quarantine_on_failure() -> None:
    engine = ScriptedEngine(lambda prompt: [1])
    with pytest.raises(WeightError, match="not prepared"):
        await engine.load(update(1))
    await engine.prepare(update(1))
    await engine.prepare(update(1))
    await engine.load(update(1))
    await engine.load(update(1))
    with pytest.raises(WeightError, match="never reused"):
        await engine.prepare(update(1))
    with pytest.raises(WeightError, match="full payload"):
        await engine.prepare(update(2, base=0))
    engine.fail_load()
    await engine.prepare(update(2))
    with pytest.raises(WeightError, match="quarantined"):
        await engine.load(update(2))
    with pytest.raises(EngineQuarantined):
        await collect(engine, [7])
    await publish(engine, 3)
    assert ids(await collect(engine, [7])) == [1]


async def test_a_failure_and_a_closed_iterator_free_the_slot() -> None:
    engine = ScriptedEngine([[1, 2, 3]], slots=1)
    engine.fail(after_tokens=2)
    with pytest.raises(EngineError, match="told to fail"):
        await collect(engine, [7])
    call = engine.generate([7, 1, 2], Sampling(max_tokens=9), session="s", deadline_s=60)
    assert (await anext(call)).token_ids == (3,)
    await call.aclose()  # type: ignore[attr-defined]
    status = await engine.status()
    assert (status.running, status.sampled_tokens) == (0, 3)


async def test_a_session_prefills_only_what_is_new() -> None:
    engine = ScriptedEngine(lambda prompt: [1, 2])
    await collect(engine, [7, 8])
    chunks = await collect(engine, [7, 8, 1, 2, 9])
    assert chunks[-1].cached_tokens == 4
    assert (await engine.status()).prefilled_tokens == 3


async def test_stop_strings_end_a_call_at_the_token_that_completes_them() -> None:
    engine = ScriptedEngine(["one STOP two"], codec=ByteCodec(["<eos>"]), eos_token_id=EOS)
    chunks = [chunk async for chunk in engine.generate([1], Sampling(max_tokens=64, stop=("STOP", "zzz")), session="s", deadline_s=60)]
    assert (bytes(ids(chunks)), chunks[-1].finish_reason, chunks[-1].stop_match) == (b"one STOP", "stop", "STOP")
