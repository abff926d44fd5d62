"""A remote engine is the engine, and what goes wrong between them has a name."""

import socket
import struct

import anyio
import pytest

from agentrl.engine.remote import RemoteEngine
from agentrl.engine.serve import serve
from agentrl.engine.wire import Address
from agentrl.episode import Sampling
from agentrl.errors import ConfigError, ContextOverflow, EngineError, EngineQuarantined, WeightError
from tests.unit.engine import tiny_models as tiny

PROMPT = list(range(20))
GREEDY = Sampling(max_tokens=12, temperature=0.0)


@pytest.fixture
async def served(tmp_path):
    """(model, engine, address) of a served engine."""
    model = tiny.make()
    async with tiny.engine(model) as engine, anyio.create_task_group() as tasks:
        address = await tasks.start(serve, engine, f"unix:{tmp_path}/engine.sock")
        yield model, engine, address
        tasks.cancel_scope.cancel()


async def idle(engine):
    async def empty():
        return (await engine.status()).running == 0

    await tiny.until(empty)


@pytest.mark.parametrize("stream", [True, False])
async def test_many_calls_share_a_connection(served, stream):
    model, _, address = served
    prompts = [PROMPT[:length] for length in range(3, 19)]
    results = {}
    async with RemoteEngine(address) as remote:

        async def one(index):
            chunks = remote.generate(prompts[index], GREEDY, session="", deadline_s=60, stream=stream)
            results[index] = await tiny.collect(chunks)

        async with anyio.create_task_group() as tasks:
            for index in range(16):
                tasks.start_soon(one, index)
    for index, prompt in enumerate(prompts):
        token_ids, values, last = results[index]
        assert token_ids == tiny.greedy(model, prompt, 12)
        assert float((values - tiny.logprobs(model, prompt, token_ids)).abs().max()) < 1e-4
        assert (last.finish_reason, len(last.token_ids)) == ("length", 1 if stream else 12)


async def test_capabilities_and_control_calls_pass_through(served, tmp_path):
    _, engine, address = served
    other = tiny.make(seed=9)
    update = tiny.publish(other, 3, tmp_path)
    async with RemoteEngine(address) as remote:
        assert remote.capabilities() == engine.capabilities()
        await remote.prepare(update)
        assert (await remote.status()).prepared == 3
        for mode in ("keep", "abort", "drain"):
            await remote.pause(mode)
            assert (await remote.status()).paused
        await remote.load(update)
        await remote.resume()
        status = await remote.status()
        assert (status.policy_version, status.paused) == (3, False)
        await remote.sleep()
        await remote.wake()
        token_ids, _, _ = await tiny.collect(remote.generate(PROMPT, GREEDY, session="", deadline_s=60))
    assert token_ids == tiny.greedy(other, PROMPT, 12)


async def test_errors_arrive_by_name(served, tmp_path):
    _, _, address = served
    update = tiny.publish(tiny.make(seed=1, hidden_size=16), 1, tmp_path)
    async with RemoteEngine(address) as remote:
        with pytest.raises(ContextOverflow, match="shorten the prompt"):
            await tiny.collect(remote.generate([1] * 5000, GREEDY, session="", deadline_s=60))
        with pytest.raises(EngineError, match="token ids from 0"):
            await tiny.collect(remote.generate([-1], GREEDY, session="", deadline_s=60))
        with pytest.raises(WeightError, match="another model"):
            await remote.prepare(update)
        with pytest.raises(WeightError, match="another model"):
            await remote.load(update)
        with pytest.raises(EngineQuarantined):
            await tiny.collect(remote.generate(PROMPT, GREEDY, session="", deadline_s=60))


async def test_closing_the_iterator_cancels_the_call(served):
    _, engine, address = served
    async with RemoteEngine(address) as remote:
        chunks = remote.generate(PROMPT, Sampling(max_tokens=1900), session="", deadline_s=60)
        async for _ in chunks:
            break
        assert (await engine.status()).running == 1
        await chunks.aclose()
        await idle(engine)


async def test_a_caller_that_disappears_frees_its_slots(served):
    _, engine, address = served
    async with RemoteEngine(address) as remote:
        chunks = remote.generate(PROMPT, Sampling(max_tokens=1900), session="", deadline_s=60)
        async for _ in chunks:
            break
    await idle(engine)
    with pytest.raises(EngineError, match="was lost"):
        async for _ in chunks:
            pass


async def serve_in(scope, engine, address, *, task_status):
    with scope:
        await serve(engine, address, task_status=task_status)


async def test_a_lost_connection_fails_calls_in_flight_and_the_next_call_connects_anew(tmp_path):
    model = tiny.make()
    address = f"unix:{tmp_path}/engine.sock"
    first, second = anyio.CancelScope(), anyio.CancelScope()
    async with tiny.engine(model) as engine, anyio.create_task_group() as servers:
        await servers.start(serve_in, first, engine, address)
        async with RemoteEngine(address) as remote:
            chunks = remote.generate(PROMPT, Sampling(max_tokens=1900), session="", deadline_s=60)
            await anext(chunks)
            first.cancel()
            with pytest.raises(EngineError, match="was lost"):
                async for _ in chunks:
                    pass
            with pytest.raises(EngineError, match="no engine at"):
                await remote.status()
            await servers.start(serve_in, second, engine, address)
            token_ids, _, _ = await tiny.collect(remote.generate(PROMPT, GREEDY, session="", deadline_s=60))
            second.cancel()
    assert token_ids == tiny.greedy(model, PROMPT, 12)


async def test_deadlines_hold_on_the_engines_side(served):
    _, engine, address = served
    await engine.pause("keep")
    async with RemoteEngine(address) as remote:
        with pytest.raises(EngineError, match=r"deadline of 0\.01 s"):
            await tiny.collect(remote.generate(PROMPT, GREEDY, session="", deadline_s=0.01))


async def test_an_engine_that_never_answers_is_given_up(tmp_path):
    path = f"{tmp_path}/silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        with pytest.raises(EngineError, match="did not answer within"):
            async with RemoteEngine(f"unix:{path}", connect_s=0.05):
                pass


async def test_tcp_needs_the_token():
    async with tiny.engine(tiny.make()) as engine, anyio.create_task_group() as tasks:
        address = await tasks.start(lambda task_status: serve(engine, "tcp:127.0.0.1:0", token="secret", task_status=task_status))
        async with RemoteEngine(address, token="secret") as remote:
            assert (await remote.status()).policy_version == 0
        with pytest.raises(EngineError, match="refused the token"):
            async with RemoteEngine(address, token="guess"):
                pass
        with pytest.raises(ConfigError, match="give a token"):
            await serve(engine, "tcp:127.0.0.1:0")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1", struct.pack(">I", 1 << 31)])
async def test_garbage_closes_the_connection_and_nothing_else(served, garbage):
    _, _, address = served
    async with await anyio.connect_unix(address.removeprefix("unix:")) as stream:
        await stream.send(garbage)
        with anyio.fail_after(20), pytest.raises(anyio.EndOfStream):
            await stream.receive()
    async with RemoteEngine(address) as remote:
        assert not (await remote.status()).paused


@pytest.mark.parametrize("text", ["", "unix:", "tcp:0.0.0.0:80", "tcp:127.0.0.1", "tcp:127.0.0.1:x", "http://a"])
def test_other_addresses_are_refused(text):
    with pytest.raises(ConfigError, match="no address of an engine"):
        Address.parse(text)
