"""Spans tell the truth across weight updates, and a failed update is never served.

The oracle replays the same history of keys and values: what was computed under the old weights stays, what came later sees it.
"""

import os

import anyio
import msgspec
import pytest
import torch

from agentrl.engine.torch.call import Call
from agentrl.engine.torch.scheduler import Scheduler
from agentrl.episode import Sampling, Span
from agentrl.errors import EngineError, EngineQuarantined, WeightError
from tests.unit.engine import tiny_models as tiny

CLOSE = 1e-4
PROMPT = [(7 * i) % tiny.VOCAB for i in range(30)]


@pytest.fixture
def old():
    return tiny.make("qwen3", seed=0)


@pytest.fixture
def new():
    return tiny.make("qwen3", seed=1)


async def steps_pass(engine, tokens):
    """Wait until that many more tokens were sampled."""
    seen = (await engine.status()).sampled_tokens

    async def passed():
        return (await engine.status()).sampled_tokens >= seen + tokens

    await tiny.until(passed)


async def started(engine, prompt, sampling, results, *, session="s"):
    """Collect a call's result; for a task group."""
    results.append(await tiny.collect(engine.generate(prompt, sampling, session=session, deadline_s=60, stream=False)))


async def test_keep_goes_on_over_the_old_keys_and_values(old, new, tmp_path):
    update = tiny.publish(new, 5, tmp_path)
    results = []
    async with tiny.engine(old, policy_version=4) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(started, engine, PROMPT, Sampling(max_tokens=1900), results)
        await steps_pass(engine, 5)
        await engine.prepare(update)
        assert (await engine.status()).prepared == 5
        await engine.pause("keep")
        still = (await engine.status()).sampled_tokens
        await engine.load(update)
        assert (await engine.status()).sampled_tokens == still
        await engine.resume()
        await steps_pass(engine, 5)
        await engine.pause("abort")
    ((token_ids, values, last),) = results
    assert last.finish_reason == "abort"
    assert [span.policy_version for span in last.spans] == [4, 5]
    assert [last.spans[0].start, last.spans[0].end, last.spans[1].end] == [0, last.spans[1].start, len(token_ids)]
    assert last.kv_oldest_version == 4
    # The first token under the new weights came out of a forward over the last token before it.
    cut = last.spans[1].start
    expected = tiny.logprobs(new, PROMPT, token_ids, older=old, older_tokens=len(PROMPT) + cut - 1)
    assert float((values - expected).abs().max()) < CLOSE
    assert float((values[cut:] - tiny.logprobs(new, PROMPT, token_ids)[cut:]).abs().max()) > 0.1


async def test_abort_and_a_new_call_prefill_again_under_the_new_weights(old, new, tmp_path):
    update = tiny.publish(new, 1, tmp_path)
    results = []
    async with tiny.engine(old) as engine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(started, engine, PROMPT, Sampling(max_tokens=1900), results)
            await steps_pass(engine, 5)
            await engine.pause("abort")
        await engine.load(update)
        await engine.resume()
        first, first_values, first_last = results[0]
        again = PROMPT + first
        second, second_values, second_last = await tiny.collect(engine.generate(again, Sampling(max_tokens=20), session="s", deadline_s=60))
    assert first_last.finish_reason == "abort"
    assert [span.policy_version for span in first_last.spans] == [0]
    assert float((first_values - tiny.logprobs(old, PROMPT, first)).abs().max()) < CLOSE
    assert second_last.cached_tokens == 0
    assert (second_last.kv_oldest_version, [span.policy_version for span in second_last.spans]) == (1, [1])
    assert float((second_values - tiny.logprobs(new, again, second)).abs().max()) < CLOSE


async def test_drain_lets_calls_finish_and_new_ones_wait(old, new, tmp_path):
    update = tiny.publish(new, 1, tmp_path)
    before, after = [], []
    async with tiny.engine(old) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(started, engine, PROMPT, Sampling(max_tokens=300), before)
        await steps_pass(engine, 5)
        async with anyio.create_task_group() as draining:
            draining.start_soon(engine.pause, "drain")
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(started, engine, PROMPT, Sampling(max_tokens=5), after)
        status = await engine.status()
        assert (status.paused, status.running, status.waiting, after) == (True, 0, 1, [])
        await engine.load(update)
        await engine.resume()
    assert (len(before[0][0]), before[0][2].finish_reason, before[0][2].spans[0].policy_version) == (300, "length", 0)
    assert (after[0][2].spans[0].policy_version, after[0][2].cached_tokens) == (1, 0)


def test_a_prompt_cut_by_an_update_keeps_its_history(old, new, tmp_path):
    """Step by step: the first 513 tokens of a prompt are computed under the old weights, the rest under the new."""
    engine = tiny.engine(old)
    scheduler: Scheduler = engine._scheduler
    prompt = [(11 * i) % tiny.VOCAB for i in range(700)]
    chunks = []
    call = Call(
        tokens=list(prompt),
        prompt_len=700,
        sampling=Sampling(max_tokens=4),
        session="",
        stream=False,
        completion_limit=4,
        stop_ids=frozenset(),
        stop_strings=None,
        uniform=scheduler.uniform_for(0),
        post=chunks.append,
    )
    with torch.inference_mode():
        scheduler.submit(call)
        scheduler.step()
        scheduler.pause("keep")
        assert not scheduler.has_work
        engine._weights.commit(engine._weights.stage(tiny.publish(new, 1, tmp_path)))
        scheduler.updated(1)
        scheduler.resume()
        while scheduler.has_work:
            scheduler.step()
    (last,) = chunks
    expected = tiny.logprobs(new, prompt, list(last.token_ids), older=old, older_tokens=513)
    assert float((torch.tensor(last.logprobs) - expected).abs().max()) < CLOSE
    assert (last.kv_oldest_version, last.spans) == (0, (Span(1, 0, 4),))


async def test_kept_keys_and_values_serve_their_own_session_only(old, new, tmp_path):
    update = tiny.publish(new, 1, tmp_path)
    async with tiny.engine(old) as engine:
        first, _, _ = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=10), session="mine", deadline_s=60))
        await engine.pause("keep")
        await engine.load(update)
        await engine.resume()
        follow = [*PROMPT, *first, 1, 2, 3]
        token_ids, values, mine = await tiny.collect(engine.generate(follow, Sampling(max_tokens=10), session="mine", deadline_s=60))
        _, _, other = await tiny.collect(engine.generate(follow, Sampling(max_tokens=10), session="other", deadline_s=60))
    cached = len(PROMPT) + 9
    assert (mine.cached_tokens, mine.kv_oldest_version) == (cached, 0)
    assert float((values - tiny.logprobs(new, follow, token_ids, older=old, older_tokens=cached)).abs().max()) < CLOSE
    assert (other.cached_tokens, other.kv_oldest_version) == (0, 1)


async def test_prepare_and_load_are_idempotent(old, new, tmp_path):
    update = tiny.publish(new, 1, tmp_path)
    sampling = Sampling(max_tokens=10, temperature=0.0)
    async with tiny.engine(old) as engine:
        await engine.prepare(update)
        await engine.prepare(update)
        await engine.load(update)
        await engine.load(update)
        await engine.prepare(update)
        status = await engine.status()
        assert (status.policy_version, status.prepared) == (1, None)
        token_ids, _, _ = await tiny.collect(engine.generate(PROMPT, sampling, session="", deadline_s=60))
    assert token_ids == tiny.greedy(new, PROMPT, 10)


async def test_a_torn_payload_is_refused_before_anything_changed(old, new, tmp_path):
    update = tiny.publish(new, 1, tmp_path)
    os.truncate(update.locator, 100)
    async with tiny.engine(old) as engine:
        with pytest.raises(WeightError, match="torn"):
            await engine.prepare(update)
        status = await engine.status()
        assert (status.policy_version, status.prepared, status.quarantined, status.paused) == (0, None, False, False)
        token_ids, _, _ = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=9, temperature=0.0), session="", deadline_s=60))
    assert token_ids == tiny.greedy(old, PROMPT, 9)


async def test_a_failed_load_quarantines_until_a_full_load(old, new, tmp_path):
    bad = tiny.publish(new, 1, tmp_path)
    good = tiny.publish(new, 2, tmp_path)
    bad = msgspec.structs.replace(bad, tensors=bad.tensors[:-1])
    failures = []

    async def waiting(engine):
        try:
            await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=1900), session="", deadline_s=60))
        except EngineQuarantined as error:
            failures.append(error)

    async with tiny.engine(old) as engine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting, engine)
            await steps_pass(engine, 3)
            await engine.pause("keep")
            with pytest.raises(WeightError, match="another model"):
                await engine.load(bad)
        status = await engine.status()
        assert (status.quarantined, status.paused, status.running, len(failures)) == (True, True, 0, 1)
        with pytest.raises(EngineQuarantined):
            await engine.resume()
        with pytest.raises(EngineQuarantined):
            await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=1), session="", deadline_s=60))
        await engine.load(good)
        status = await engine.status()
        assert (status.quarantined, status.paused, status.policy_version) == (False, True, 2)
        await engine.resume()
        token_ids, _, _ = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=9, temperature=0.0), session="", deadline_s=60))
    assert token_ids == tiny.greedy(new, PROMPT, 9)


@pytest.mark.parametrize("change", [{"base": 0}, {"transport": "nccl"}])
async def test_updates_of_other_kinds_are_refused(old, new, tmp_path, change):
    update = msgspec.structs.replace(tiny.publish(new, 1, tmp_path), **change)
    async with tiny.engine(old) as engine:
        with pytest.raises(WeightError, match="full payloads"):
            await engine.prepare(update)


async def test_sleep_frees_memory_and_wake_serves_again(old):
    async with tiny.engine(old) as engine:
        await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=9), session="", deadline_s=60))
        await engine.sleep()
        assert all(arena.kv.numel() == 0 for arena in engine._scheduler._slots.arenas)
        await engine.wake()
        token_ids, _, last = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=9, temperature=0.0), session="", deadline_s=60))
    assert last.cached_tokens == 0
    assert token_ids == tiny.greedy(old, PROMPT, 9)


async def test_a_call_that_outlives_its_deadline_fails_and_frees_its_slot(old):
    async with tiny.engine(old) as engine:
        await engine.pause("keep")
        with pytest.raises(EngineError, match="deadline"):
            await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=9), session="", deadline_s=0.01))
        await engine.resume()
        status = await engine.status()
        assert (status.running, status.waiting) == (0, 0)


async def test_closing_the_iterator_frees_the_slot(old):
    async with tiny.engine(old, slots=1) as engine:
        chunks = engine.generate(PROMPT, Sampling(max_tokens=1900), session="", deadline_s=60)
        async for _ in chunks:
            break
        await chunks.aclose()
        token_ids, _, _ = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=9, temperature=0.0), session="", deadline_s=60))
        assert token_ids == tiny.greedy(old, PROMPT, 9)
        assert (await engine.status()).running == 0


async def test_closing_the_engine_fails_calls_in_flight(old):
    failures = []

    async def waiting(engine):
        try:
            await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=1900), session="", deadline_s=60))
        except EngineError as error:
            failures.append(str(error))

    async with anyio.create_task_group() as tasks, tiny.engine(old) as engine:
        tasks.start_soon(waiting, engine)
        await steps_pass(engine, 3)
    assert failures == ["the engine was closed"]
