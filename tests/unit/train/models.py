"""Tiny random models and hand-made data for the trainer's tests."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentrl.train.packing import Ragged

VOCAB = 61

torch.set_num_threads(1)


def tiny_llama(*, heads: int = 4, kv_heads: int = 2, tied: bool = True, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def ragged(length: int, *, seed: int = 0, temperature: float = 1.0) -> Ragged:
    rng = np.random.default_rng(seed)
    trained = rng.random(length) < 0.6
    trained[0] = False
    trained[-1] = True
    return Ragged(
        token_ids=rng.integers(0, VOCAB, length).astype(np.int32),
        trained=trained,
        temperature=np.full(length, temperature, np.float32),
    )


def group(prompt: int, answers: tuple[int, ...], *, seed: int = 0) -> list[Ragged]:
    """One prompt, then answers, of which each two begin alike."""
    rng = np.random.default_rng(seed)
    shared, rows = rng.integers(0, VOCAB, prompt), []
    for i, length in enumerate(answers):
        tail = np.random.default_rng([seed, i // 2]).integers(0, VOCAB, length)
        tail[length // 2 :] = rng.integers(0, VOCAB, length - length // 2)
        ids = np.concatenate([shared, tail]).astype(np.int32)
        rows.append(Ragged(ids, np.arange(len(ids)) >= prompt - 3 * (i % 2), np.full(len(ids), 0.5 + i % 3, np.float32)))
    return rows


def reference_logprobs(model: PreTrainedModel, row: Ragged) -> torch.Tensor:
    """[trained] one sequence alone, whole logits, plain log_softmax."""
    ids = torch.from_numpy(row.token_ids.astype(np.int64))
    logits = model(input_ids=ids[None]).logits[0] / torch.from_numpy(row.temperature).roll(-1)[:, None]
    every = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    return every[torch.from_numpy(row.trained[1:])]
