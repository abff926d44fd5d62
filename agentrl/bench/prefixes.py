"""What it is worth to compute once what rows share from their start: the same rows packed so, and each by itself, in turns.

Forward and backward of the trainer's model; the optimizer and the reading of blobs cost the same on either side.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.train.model import PolicyModel
from agentrl.train.packing import Packed, Ragged, pack

ROUNDS, WARM_UP = 7, 1
GROUP, PROMPT, ANSWER = 16, 256, 64
TURNS, SYSTEM, QUESTION, THOUGHT, REPLY = 8, 64, 16, 32, 16
APART = 1 << 30
"""More tokens than any rows share."""


def speed_up(policy: PolicyModel, rows: Sequence[Ragged]) -> float:
    """Tokens of rows a second, shared over apart."""
    once, apart = pack(rows, policy.device), pack(rows, policy.device, least_shared=APART)
    times = [(_seconds(policy, once), _seconds(policy, apart)) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
    return statistics.median(theirs for _, theirs in times) / statistics.median(ours for ours, _ in times)


def group(vocab: int) -> list[Ragged]:
    """A group's answers to one prompt."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, vocab, PROMPT)
    return [_row(prompt, rng.integers(0, vocab, ANSWER)) for _ in range(GROUP)]


def turns(vocab: int) -> list[Ragged]:
    """The paths of an agent run whose every turn thinks, and drops the thought before the next."""
    rng = np.random.default_rng(0)
    rows, history = [], rng.integers(0, vocab, SYSTEM)
    for _ in range(TURNS):
        question, thought, reply = (rng.integers(0, vocab, n) for n in (QUESTION, THOUGHT, REPLY))
        history = np.concatenate([history, question])
        rows.append(_row(history, np.concatenate([thought, reply])))
        history = np.concatenate([history, reply])
    return rows


def _row(context: NDArray[np.int64], sampled: NDArray[np.int64]) -> Ragged:
    token_ids = np.concatenate([context, sampled]).astype(np.int32)
    return Ragged(token_ids, np.arange(len(token_ids)) >= len(context), np.ones(len(token_ids), np.float32))


def _seconds(policy: PolicyModel, packed: Packed) -> float:
    started = time.perf_counter()
    policy.logprobs(packed).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    if policy.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    for _, parameter in policy.named_parameters():
        parameter.grad = None
    return seconds
