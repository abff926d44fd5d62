"""Whatever comes, goes and is cancelled: no slot leaks, and every call that ends has the tokens it would have had alone."""

import functools
import itertools
import time

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.torch.call import Call
from agentrl.engine.torch.scheduler import Scheduler
from agentrl.episode import Sampling
from tests.unit.engine import tiny_models as tiny

MODEL = functools.cache(lambda: tiny.make("llama", num_hidden_layers=1))
SLOTS = functools.cache(lambda: tiny.slot_model(MODEL()))
STEMS = [[(17 * stem + 5 * i) % tiny.VOCAB for i in range(140)] for stem in range(3)]

operation = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 2), st.integers(1, 140), st.integers(0, 3), st.integers(1, 40)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("step"), st.integers(1, 12)),
    st.tuples(st.just("pause"), st.sampled_from(["keep", "abort", "drain"])),
)


@functools.cache
def alone(prompt: tuple[int, ...], count: int) -> list[int]:
    return tiny.greedy(MODEL(), list(prompt), count)


@settings(max_examples=25, deadline=None)
@given(st.lists(operation, min_size=5, max_size=30), st.integers(1, 5), st.sampled_from([0, 30_000, 1 << 30]))
def test_slots_never_leak_and_company_changes_no_token(operations, slots, retained_bytes):
    scheduler = Scheduler(SLOTS(), slots=slots, retained_bytes=retained_bytes, policy_version=0)
    calls, ended, cancelled = [], {}, set()
    with torch.inference_mode():
        for name, *values in operations:
            if name == "submit":
                stem, length, branch, limit = values
                prompt = STEMS[stem][:length] + [branch] * branch
                call = new_call(scheduler, prompt, limit, session=str(branch), ended=ended)
                calls.append(call)
                scheduler.submit(call)
            elif name == "cancel" and calls:
                call = calls[values[0] % len(calls)]
                cancelled.add(call)
                scheduler.cancel(call)
            elif name == "step":
                for _ in range(values[0]):
                    if scheduler.has_work:
                        scheduler.step()
            elif name == "pause":
                scheduler.pause(values[0])
                scheduler.resume()
            check_rows(scheduler, slots)
        while scheduler.has_work:
            scheduler.step()
    assert (scheduler.running, scheduler.waiting) == (0, 0)
    assert scheduler._prompts._root.children == {}
    for call in calls:
        chunk = ended.get(call)
        if chunk is None:
            assert call in cancelled
            continue
        expected = alone(tuple(call.tokens[: call.prompt_len]), 40)[: len(chunk.token_ids)]
        assert list(chunk.token_ids) == expected
        assert chunk.finish_reason == "abort" or len(expected) == call.completion_limit


def new_call(scheduler, prompt, limit, *, session, ended):
    def post(chunk):
        assert call not in ended
        ended[call] = chunk

    call = Call(
        tokens=list(prompt),
        prompt_len=len(prompt),
        sampling=Sampling(max_tokens=limit, temperature=0.0),
        session=session,
        stream=False,
        completion_limit=limit,
        stop_ids=frozenset(),
        stop_strings=None,
        uniform=scheduler.uniform_for(None),
        post=post,
    )
    return call


def check_rows(scheduler, slots):
    assert scheduler.running <= slots
    for index, arena in enumerate(scheduler._slots.arenas):
        assert [(call.arena, call.row) for call in arena.calls] == [(index, row) for row in range(len(arena.calls))]
    kept = scheduler._retained
    assert kept._bytes == sum(entry.kv.nbytes for entry in kept._entries) <= kept._budget


def test_busy_seconds_never_run_ahead_of_the_clock(monkeypatch):
    scheduler = Scheduler(SLOTS(), slots=2, retained_bytes=0, policy_version=0)
    readings = []

    def read():
        before = time.perf_counter()
        readings.append((before, scheduler.busy_s, time.perf_counter()))

    def forward(plan, inner=scheduler.model.forward):
        read()
        logits = inner(plan)
        read()
        return logits

    monkeypatch.setattr(scheduler.model, "forward", forward)
    scheduler.submit(new_call(scheduler, STEMS[0][:20], 5, session="", ended={}))
    with torch.inference_mode():
        while scheduler.has_work:
            scheduler.step()
            read()
    assert len(readings) == 15
    for (began, busy, _), (_, later, ended) in itertools.pairwise(readings):
        assert 0 < later - busy <= ended - began
    assert scheduler.busy_s == readings[-1][1], "nothing is busy between two steps"
