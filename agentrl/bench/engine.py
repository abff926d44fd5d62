"""The embedded engine against `transformers.generate` on the same model, dtype and threads.

A ragged load shows what continuous batching is for: a static batch runs to its longest request and cannot take the next one in. Both sides
sample at T = 1 without truncation and end each request at its own length; only tokens that a request asked for count.
"""

import copy
import gc
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from agentrl.engine.config import EngineConfig
from agentrl.engine.torch.engine import TorchEngine
from agentrl.engine.torch.model import SlotModel
from agentrl.episode import Sampling

_AT_A_TIME = 64
_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Request:
    prompt_ids: list[int]
    new_tokens: int


async def bench(*, smollm2: Path | None = None, threads: int = 1, repeats: int = 5, requests: int = 256) -> dict[str, Any]:
    """The row `engine` of the benchmarks. `smollm2` is a local folder of that model; without it, its ratio is absent."""
    tiny = _tiny_model()
    # As the engine's process does; neither side pays for walking what was imported.
    gc.collect()
    gc.freeze()
    ratios = {"vs_generate_ragged": await _versus_generate(tiny, threads=threads, repeats=repeats, requests=requests)}
    if smollm2 is not None:
        real = _without_eos(AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, local_files_only=True))
        ratios["vs_generate_smollm2"] = await _versus_generate(real, threads=threads, repeats=1, requests=requests)
    figures = {
        "prefill_per_unique_token_8_turns": await _prefill_of_8_turns(tiny),
        "prompt_prefills_group_16": await _prefills_of_a_group(tiny),
    }
    return {"bench": "engine", "figures": figures, "ratios": ratios}


async def _versus_generate(model: Any, *, threads: int, repeats: int, requests: int) -> float:
    """Tokens per second, ours over theirs: medians of interleaved runs after one of each to warm up."""
    ours: list[float] = []
    theirs: list[float] = []
    async with _engine(model, threads=threads) as engine:
        await _serve(engine, _load(model.config.vocab_size, requests=16, seed=0))
        await anyio.to_thread.run_sync(_generate, model, _load(model.config.vocab_size, requests=16, seed=0), threads)
        for seed in range(1, repeats + 1):
            # Fresh prompts each time, so that nothing is served from retained KV.
            load = _load(model.config.vocab_size, requests=requests, seed=seed)
            tokens = sum(request.new_tokens for request in load)
            started = time.perf_counter()
            await _serve(engine, load)
            between = time.perf_counter()
            await anyio.to_thread.run_sync(_generate, model, load, threads)
            ours.append(tokens / (between - started))
            theirs.append(tokens / (time.perf_counter() - between))
    return statistics.median(ours) / statistics.median(theirs)


async def _serve(engine: TorchEngine, load: list[Request]) -> None:
    async with anyio.create_task_group() as calls:
        for request in load:
            calls.start_soon(_call, engine, request)


async def _call(engine: TorchEngine, request: Request, session: str = "") -> list[int]:
    sampling = Sampling(max_tokens=request.new_tokens)
    token_ids: list[int] = []
    async for chunk in engine.generate(request.prompt_ids, sampling, session=session, deadline_s=_DEADLINE_S, stream=False):
        token_ids += chunk.token_ids
    return token_ids


def _generate(model: Any, load: list[Request], threads: int) -> None:
    """Batches of 64 in arrival order, padded on the left, each to its longest request."""
    torch.set_num_threads(threads)
    for first in range(0, len(load), _AT_A_TIME):
        batch = load[first : first + _AT_A_TIME]
        width = max(len(request.prompt_ids) for request in batch)
        padding = [width - len(request.prompt_ids) for request in batch]
        ids = torch.tensor([[0] * pad + request.prompt_ids for pad, request in zip(padding, batch, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        longest = max(request.new_tokens for request in batch)
        model.generate(
            ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=longest, pad_token_id=0
        )


async def _prefill_of_8_turns(model: Any) -> float:
    """Prompt tokens computed in a session of 8 turns, per token of its final sequence that no turn before had."""
    turns = _load(model.config.vocab_size, requests=8, seed=0)
    history: list[int] = []
    async with _engine(model) as engine:
        for turn in turns:
            history += turn.prompt_ids
            history += await _call(engine, Request(history, turn.new_tokens), session="s")
        prefilled = (await engine.status()).prefilled_tokens
    return prefilled / sum(len(turn.prompt_ids) for turn in turns)


async def _prefills_of_a_group(model: Any) -> float:
    """Times that a prompt of 512 tokens is computed for 16 members that arrive together."""
    prompt = random.Random(0).choices(range(model.config.vocab_size), k=512)
    async with _engine(model) as engine:
        await _serve(engine, [Request(prompt, 16)] * 16)
        return (await engine.status()).prefilled_tokens / len(prompt)


def _engine(model: Any, *, threads: int = 1) -> TorchEngine:
    """On a copy, because the engine changes its model's attention."""
    return TorchEngine(SlotModel(copy.deepcopy(model)), EngineConfig(slots=_AT_A_TIME, threads=threads), seed=0)


def _without_eos(model: Any) -> Any:
    """So that every request has the length it asks for."""
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    return model


def _load(vocab: int, *, requests: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [Request(rng.choices(range(vocab), k=rng.randint(16, 48)), rng.randint(8, 64)) for _ in range(requests)]


def _tiny_model() -> Any:
    """The shape of the model that `--model tiny` builds, at random."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return _without_eos(LlamaForCausalLM(config).eval())
