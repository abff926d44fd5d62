"""Tokens and μ agree with the same model run by transformers, whatever else runs beside them."""

import itertools
import random

import anyio
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agentrl.episode import Sampling
from agentrl.errors import ContextOverflow, EngineError
from tests.unit.engine import tiny_models as tiny

KINDS = ("llama", "qwen2", "qwen3")
CLOSE = 1e-4


def prompts(count, *, seed=0, low=3, high=60):
    rng = random.Random(seed)
    return [[rng.randrange(tiny.VOCAB) for _ in range(rng.randint(low, high))] for _ in range(count)]


async def run_all(engine, calls, *, stream=None):
    """[(tokens, logprobs, last chunk)] of calls (prompt, sampling) that run together; every other one streams unless told."""
    results = [None] * len(calls)

    async def one(index, prompt, sampling):
        chunks = engine.generate(prompt, sampling, session=f"s{index}", deadline_s=60, stream=index % 2 == 0 if stream is None else stream)
        results[index] = await tiny.collect(chunks)

    async with anyio.create_task_group() as tasks:
        for index, (prompt, sampling) in enumerate(calls):
            tasks.start_soon(one, index, prompt, sampling)
    return results


@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_equals_generate_in_a_mixed_batch(kind):
    model = tiny.make(kind)
    rng = random.Random(1)
    calls = [(prompt, Sampling(max_tokens=rng.randint(1, 40), temperature=0.0)) for prompt in prompts(24)]
    async with tiny.engine(model, slots=8) as engine:
        for (prompt, sampling), (token_ids, _, last) in zip(calls, await run_all(engine, calls), strict=True):
            assert token_ids == tiny.greedy(model, prompt, sampling.max_tokens)
            assert last.finish_reason == "length"


async def test_a_prompt_longer_than_a_step_and_a_row_equals_generate():
    model = tiny.make()
    calls = [(prompt, Sampling(max_tokens=8, temperature=0.0)) for prompt in prompts(3, low=900, high=1100)]
    calls += [(prompt, Sampling(max_tokens=200, temperature=0.0)) for prompt in prompts(2, seed=5)]
    async with tiny.engine(model) as engine:
        for (prompt, sampling), (token_ids, _, _) in zip(calls, await run_all(engine, calls), strict=True):
            assert token_ids == tiny.greedy(model, prompt, sampling.max_tokens)


@pytest.mark.parametrize("kind", KINDS)
async def test_mu_is_the_logprob_at_the_calls_temperature(kind):
    model = tiny.make(kind)
    temperatures = (1.0, 0.5, 1.7, 1.0, 0.9)
    calls = [(p, Sampling(max_tokens=20, temperature=t)) for p, t in zip(prompts(5), temperatures, strict=True)]
    async with tiny.engine(model) as engine:
        for (prompt, sampling), (token_ids, values, last) in zip(calls, await run_all(engine, calls), strict=True):
            expected = tiny.logprobs(model, prompt, token_ids, temperature=sampling.temperature)
            assert float((values - expected).abs().max()) < CLOSE
            assert [(span.policy_version, span.start, span.end) for span in last.spans] == [(0, 0, 20)]


async def test_eight_turns_reuse_their_prefix_and_keep_mu_right():
    model = tiny.make("qwen3")
    added = prompts(8, low=20, high=40)
    history = []
    async with tiny.engine(model) as engine:
        for turn in added:
            history += turn
            sampling = Sampling(max_tokens=16)
            token_ids, values, last = await tiny.collect(engine.generate(history, sampling, session="s", deadline_s=60, stream=False))
            assert float((values - tiny.logprobs(model, history, token_ids)).abs().max()) < CLOSE
            assert last.cached_tokens == max(0, len(history) - len(turn) - 1)
            history += token_ids
        prefilled = (await engine.status()).prefilled_tokens
    assert prefilled == sum(map(len, added)) + 7
    assert prefilled <= 1.1 * len(history)


async def test_a_fork_inside_a_turn_reuses_all_that_it_shares():
    model = tiny.make()
    (prompt,) = prompts(1, low=50, high=50)
    async with tiny.engine(model) as engine:
        first, _, _ = await tiny.collect(engine.generate(prompt, Sampling(max_tokens=30), session="a", deadline_s=60))
        fork = prompt + first[:10] + [(first[10] + 1) % tiny.VOCAB, 5, 6]
        token_ids, values, last = await tiny.collect(engine.generate(fork, Sampling(max_tokens=9), session="b", deadline_s=60))
    assert last.cached_tokens == 60
    assert float((values - tiny.logprobs(model, fork, token_ids)).abs().max()) < CLOSE


async def test_sixteen_group_members_prefill_their_prompt_once():
    model = tiny.make()
    (prompt,) = prompts(1, low=700, high=700)
    calls = [(prompt, Sampling(max_tokens=6, seed=seed)) for seed in range(16)]
    async with tiny.engine(model) as engine:
        results = await run_all(engine, calls)
        status = await engine.status()
    # Each of the other fifteen computes the prompt's last token, whose logits it draws from.
    assert status.prefilled_tokens == 700 + 15
    assert len({tuple(token_ids) for token_ids, _, _ in results}) > 8
    for token_ids, values, _ in results:
        assert float((values - tiny.logprobs(model, prompt, token_ids)).abs().max()) < CLOSE


@pytest.mark.parametrize(
    "truncation", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 20, "top_p": 0.8, "min_p": 0.02, "temperature": 1.3}]
)
async def test_truncation_reports_its_support_and_mu_over_it(truncation):
    model = tiny.make()
    sampling = Sampling(max_tokens=12, support=True, **truncation)
    (prompt,) = prompts(1)
    async with tiny.engine(model) as engine:
        # Plain calls run in the same batch, and must not be truncated.
        plain = [(prompt, Sampling(max_tokens=12, support=True))] * 2
        (token_ids, values, last), *others = await run_all(engine, [(prompt, sampling), *plain], stream=False)
    assert [other.support for _, _, other in others] == [None, None]
    rows = (tiny.logits(model, [*prompt, *token_ids[:-1]])[len(prompt) - 1 :] / sampling.temperature).softmax(-1)
    for row, token, value, support in zip(rows, token_ids, values.tolist(), last.support, strict=True):
        assert set(support) == _survivors(row, sampling)
        assert token in support
        assert value == pytest.approx(float((row[token] / row[list(support)].sum()).log()), abs=CLOSE)


def _survivors(probs, sampling):
    """The definition, one token at a time."""
    order = sorted(range(len(probs)), key=lambda token: -float(probs[token]))
    order = order[: sampling.top_k or None]
    total = sum(float(probs[token]) for token in order)
    kept, mass = set(), 0.0
    for token in order:
        if kept and (mass >= sampling.top_p * total or float(probs[token]) < sampling.min_p * float(probs[order[0]])):
            break
        kept.add(token)
        mass += float(probs[token])
    return kept


async def test_draws_follow_the_distribution():
    model = tiny.make()
    (prompt,) = prompts(1)
    expected = tiny.logits(model, prompt)[-1].softmax(-1)
    calls = [(prompt, Sampling(max_tokens=1, seed=seed)) for seed in range(600)]
    async with tiny.engine(model) as engine:
        counts = torch.zeros(tiny.VOCAB)
        for token_ids, _, _ in await run_all(engine, calls):
            counts[token_ids[0]] += 1
    # Six standard deviations of a binomial count, for each token.
    assert bool(((counts - 600 * expected).abs() < 1 + 6 * (600 * expected * (1 - expected)).sqrt()).all())


async def test_a_seed_gives_the_same_tokens_in_any_company():
    model = tiny.make()
    first, *others = prompts(9)
    seeded = Sampling(max_tokens=20, seed=7)
    async with tiny.engine(model, seed=1) as engine:
        ((alone, _, _),) = await run_all(engine, [(first, seeded)])
        crowd = await run_all(engine, [(first, seeded), *((other, Sampling(max_tokens=30)) for other in others)])
    assert crowd[0][0] == alone


async def test_eos_and_stop_ids_end_a_call_and_are_kept():
    model = tiny.make()
    (prompt,) = prompts(1)
    free = tiny.greedy(model, prompt, 30)
    stop = free[10]
    where = free.index(stop)
    sampling = Sampling(max_tokens=30, temperature=0.0, stop_token_ids=(stop,))
    async with tiny.engine(model) as engine:
        token_ids, _, last = await tiny.collect(engine.generate(prompt, sampling, session="", deadline_s=60))
    assert token_ids == free[: where + 1]
    assert (last.finish_reason, last.stop_match) == ("stop", None)
    model.config.eos_token_id = stop
    async with tiny.engine(model) as engine:
        assert engine.capabilities().eos_token_ids == (stop,)
        token_ids, _, last = await tiny.collect(
            engine.generate(prompt, Sampling(max_tokens=30, temperature=0.0), session="", deadline_s=60)
        )
    assert token_ids == free[: where + 1]


def byte_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate(alphabet + [a + b for a, b in itertools.pairwise(alphabet[60:105])])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


async def test_a_stop_string_ends_the_call_at_the_token_that_completes_it():
    model = tiny.make()
    tokenizer = byte_tokenizer()
    (prompt,) = prompts(1)
    free = tiny.greedy(model, prompt, 40)
    stop = tokenizer.decode(free[8:12], skip_special_tokens=False)
    texts = [tokenizer.decode(free[: end + 1], skip_special_tokens=False) for end in range(40)]
    where = next(end for end, text in enumerate(texts) if stop in text)
    sampling = Sampling(max_tokens=40, temperature=0.0, stop=("never there", stop))
    async with tiny.engine(model, tokenizer=tokenizer) as engine:
        token_ids, values, last = await tiny.collect(engine.generate(prompt, sampling, session="", deadline_s=60))
    assert token_ids == free[: where + 1]
    assert (last.finish_reason, last.stop_match) == ("stop", stop)
    assert len(values) == len(token_ids)


async def test_the_context_bounds_a_call():
    model = tiny.make()
    async with tiny.engine(model, context_length=64) as engine:
        token_ids, _, last = await tiny.collect(engine.generate([1] * 60, Sampling(max_tokens=50), session="", deadline_s=60))
        assert (len(token_ids), last.finish_reason) == (4, "length")
        with pytest.raises(ContextOverflow, match=r"64 tokens and the context 64"):
            await tiny.collect(engine.generate([1] * 64, Sampling(max_tokens=1), session="", deadline_s=60))


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([], Sampling(max_tokens=1)),
        ([tiny.VOCAB], Sampling(max_tokens=1)),
        ([-1], Sampling(max_tokens=1)),
        ([1], Sampling(max_tokens=0)),
        ([1], Sampling(max_tokens=1, temperature=-1.0)),
        ([1], Sampling(max_tokens=1, temperature=float("nan"))),
        ([1], Sampling(max_tokens=1, top_p=0.0)),
        ([1], Sampling(max_tokens=1, stop=("x",))),
    ],
)
async def test_a_call_that_cannot_be_served_is_refused(prompt, sampling):
    async with tiny.engine(tiny.make()) as engine:
        with pytest.raises(EngineError):
            await tiny.collect(engine.generate(prompt, sampling, session="", deadline_s=60))


async def test_a_model_that_has_diverged_fails_its_calls_and_then_recovers(tmp_path):
    model, broken = tiny.make(seed=0), tiny.make(seed=0)
    torch.nn.init.constant_(broken.model.norm.weight, float("nan"))
    (prompt,) = prompts(1)
    async with tiny.engine(model) as engine:
        await engine.load(tiny.publish(broken, 1, tmp_path))
        with pytest.raises(EngineError, match="not finite"):
            await tiny.collect(engine.generate(prompt, Sampling(max_tokens=5), session="", deadline_s=60))
        await engine.load(tiny.publish(model, 2, tmp_path))
        sampling = Sampling(max_tokens=20, temperature=0.0)
        token_ids, _, _ = await tiny.collect(engine.generate(prompt, sampling, session="", deadline_s=60))
    assert token_ids == tiny.greedy(model, prompt, 20)
