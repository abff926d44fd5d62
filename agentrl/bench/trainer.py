"""The trainer against a padded `transformers` loop on the same rows, shared prefixes against none, the head's memory against whole logits.

The loop's rows are those of the issue that set the figure: 32 of lengths uniform in 64–512. Ours is the whole update, from sealed blobs to
new weights; the padded loop is handed its tensors. Both run the same model, objective, precision, threads and optimizer, in turns.
"""

import io
import multiprocessing
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.bench import prefixes
from agentrl.episode import EpisodeKey, EpisodeRecord, Sampling, Span, Turn, write_episode
from agentrl.ledger.feed import Batch, FeedEpisode, FeedRun, Minibatch
from agentrl.objective import ObjectiveConfig
from agentrl.objective.preset import objective
from agentrl.train.config import TrainConfig
from agentrl.train.head import logprobs_of
from agentrl.train.model import PolicyModel
from agentrl.train.trainer import Trainer, optimizer

VOCAB, ROWS, SHORTEST, LONGEST, PROMPT = 1024, 32, 64, 512, 32
ROUNDS, WARM_UP = 5, 1
HEAD_TOKENS, HEAD_WIDTH, HEAD_VOCAB = 4096, 128, 32_768
CONFIG = TrainConfig(lr=1e-4, steps=100, grad_clip=1.0)


def bench() -> dict[str, dict[str, float]]:
    """Medians of turns that alternate; a ratio above 1 says that ours is faster, head_memory below 1 that ours is smaller."""
    ours, padded, tokens = _race()
    policy = PolicyModel(_model())
    chunked, whole = (_peak_bytes(kind) for kind in ("chunked", "whole"))
    return {
        "ratios": {
            "vs_padded_loop": padded / ours,
            "prefix_group_16": prefixes.speed_up(policy, prefixes.group(VOCAB)),
            "prefix_turns_8": prefixes.speed_up(policy, prefixes.turns(VOCAB)),
            "head_memory_vs_unchunked": chunked / whole,
        },
        "figures": {
            "tokens_per_s": tokens / ours,
            "padded_loop_tokens_per_s": tokens / padded,
            "head_peak_mb": chunked / 2**20,
            "head_peak_mb_unchunked": whole / 2**20,
        },
    }


def _race() -> tuple[float, float, float]:
    """Median seconds of an update by ours and by the padded loop, and the median of its tokens without padding."""
    torch.set_num_threads(CONFIG.threads)
    blobs: dict[str, bytes] = {}
    trainer = Trainer(PolicyModel(_model()), objective(ObjectiveConfig()), CONFIG, lambda handle: io.BytesIO(blobs[handle]))
    loop = PaddedLoop(_model())
    times: dict[str, list[float]] = {"ours": [], "padded": [], "tokens": []}
    for step in range(1, WARM_UP + ROUNDS + 1):
        turns = _turns(step)
        batch = _batch(turns, step, blobs)
        started = time.perf_counter()
        trainer.update(batch.minibatches[0], batch)
        between = time.perf_counter()
        loop.update(turns)
        ended = time.perf_counter()
        if step > WARM_UP:
            times["ours"].append(between - started)
            times["padded"].append(ended - between)
            times["tokens"].append(float(sum(turn.own_len for turn in turns)))
    return statistics.median(times["ours"]), statistics.median(times["padded"]), statistics.median(times["tokens"])


class PaddedLoop:
    """What one writes with transformers and nothing else: pad to the longest, whole logits, log_softmax, gather."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.optimizer = optimizer(PolicyModel(model), CONFIG)
        model.set_attn_implementation("sdpa")

    def update(self, turns: list[Turn]) -> None:
        longest = max(turn.own_len for turn in turns)
        token_ids = torch.zeros(len(turns), longest, dtype=torch.int64)
        attended, trained = torch.zeros_like(token_ids), torch.zeros(len(turns), longest)
        sampler_logprobs = torch.zeros(len(turns), longest)
        for i, turn in enumerate(turns):
            n, start = turn.own_len, len(turn.prompt_ids)
            token_ids[i, :n] = torch.from_numpy(np.concatenate([turn.prompt_ids, turn.completion_ids]))
            attended[i, :n] = 1
            trained[i, start:n] = 1
            sampler_logprobs[i, start:n] = torch.tensor(turn.sampler_logprobs)
        logits = self.model(input_ids=token_ids, attention_mask=attended, use_cache=False).logits
        logprobs = logits[:, :-1].log_softmax(-1).gather(2, token_ids[:, 1:, None])[..., 0]
        ratio = (logprobs - sampler_logprobs[:, 1:]).exp()
        advantage = torch.tensor([_advantage(i) for i in range(len(turns))])[:, None]
        term = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        loss = -(term * trained[:, 1:]).sum() / trained[:, 1:].sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CONFIG.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LONGEST,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def _turns(step: int) -> list[Turn]:
    rng = np.random.default_rng(step)
    return [_turn(rng, f"{step}-{i}", int(length)) for i, length in enumerate(rng.integers(SHORTEST, LONGEST + 1, ROWS))]


def _turn(rng: np.random.Generator, name: str, length: int) -> Turn:
    n = length - PROMPT
    return Turn(
        id=name,
        agent_run=name,
        parent=None,
        prompt_ids=rng.integers(0, VOCAB, PROMPT).astype(np.int32),
        completion_ids=rng.integers(0, VOCAB, n).astype(np.int32),
        mask=np.ones(n, bool),
        sampler_logprobs=np.full(n, -np.log(VOCAB), np.float32),
        spans=(Span(0, 0, n),),
        kv_oldest_version=0,
        sampling=Sampling(max_tokens=n),
        finish_reason="stop",
    )


def _advantage(index: int) -> float:
    return 0.75 if index % 4 == 0 else -0.25


def _batch(turns: list[Turn], step: int, blobs: dict[str, bytes]) -> Batch:
    """The turns, each an episode, as the controller would feed them."""
    episodes = []
    for i, turn in enumerate(turns):
        file = io.BytesIO()
        key = EpisodeKey(epoch=0, task_id=turn.id, member=0)
        write_episode(file, EpisodeRecord(id=turn.id, key=key, split="train", env="bench", env_version="1", task={}), [turn])
        blobs[turn.id] = file.getvalue()
        run = FeedRun(agent_run=turn.id, group="g", policy="policy", advantage=_advantage(i))
        episodes.append(FeedEpisode(episode=turn.id, handle=turn.id, runs=(run,)))
    minibatch = Minibatch(step=step, episodes=tuple(episodes), trained_tokens=sum(len(turn.completion_ids) for turn in turns))
    return Batch(number=step, minibatches=(minibatch,), policy_version=0, oldest_version=0, ledger_position=0)


def _peak_bytes(kind: str) -> int:
    """Growth of the resident peak over one forward and backward of the head, in a process of its own (a peak never shrinks)."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_head_growth, (kind,))


def _head_growth(kind: str) -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden, weight = torch.randn(HEAD_TOKENS, HEAD_WIDTH, requires_grad=True), torch.randn(HEAD_VOCAB, HEAD_WIDTH, requires_grad=True)
    targets, temperature = torch.randint(0, HEAD_VOCAB, (HEAD_TOKENS,)), torch.ones(HEAD_TOKENS)
    before = _peak_rss()
    if kind == "chunked":
        logprobs = logprobs_of(hidden, weight, None, targets, temperature).logprobs
    else:
        logprobs = (hidden @ weight.T / temperature[:, None]).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return _peak_rss() - before


def _peak_rss() -> int:
    """Bytes. Linux's ru_maxrss is inherited from the parent across exec, its VmHWM is not."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
