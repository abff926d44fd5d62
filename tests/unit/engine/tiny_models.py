"""Random models small enough for tests, and the oracles that the engine must agree with: the same models run by transformers."""

import copy
from pathlib import Path

import anyio
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agentrl.engine.config import EngineConfig
from agentrl.engine.torch.engine import TorchEngine
from agentrl.engine.torch.model import SlotModel
from agentrl.weights.publish import WeightPublisher, snapshot

VOCAB = 300
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "eos_token_id": None,
    "bos_token_id": None,
}


def make(kind="llama", *, seed=0, **change):
    """A model with logits that spread over a few nats."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    shape = _SHAPE | change
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=False))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=16, tie_word_embeddings=True))
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.eval()


def slot_model(model, **change):
    """An engine's copy; the original stays an oracle."""
    return SlotModel(copy.deepcopy(model), **change)


def engine(model, *, slots=64, context_length=None, **change):
    return TorchEngine(slot_model(model, context_length=context_length), EngineConfig(slots=slots), **change)


def publish(model, version, folder: Path):
    return WeightPublisher(folder, keep=9).publish(snapshot(model.state_dict()), version)


@torch.no_grad()
def greedy(model, prompt, count):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


@torch.no_grad()
def logits(model, ids, *, older=None, older_tokens=0):
    """[tokens, vocab] after each token; the first `older_tokens` are computed (and their KV made) by the model `older`."""
    if older is None or older_tokens == 0:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    cache = DynamicCache(config=model.config)
    first = older(torch.tensor([ids[:older_tokens]]), past_key_values=cache, use_cache=True).logits[0]
    positions = torch.arange(older_tokens, len(ids))[None]
    rest = model(torch.tensor([ids[older_tokens:]]), past_key_values=cache, position_ids=positions, use_cache=True).logits[0]
    return torch.cat([first, rest])


def logprobs(model, prompt, completion, *, temperature=1.0, older=None, older_tokens=0):
    """[completion] nats of each completion token."""
    rows = logits(model, [*prompt, *completion[:-1]], older=older, older_tokens=older_tokens)[len(prompt) - 1 :]
    return (rows / temperature).log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


async def until(condition):
    """Poll an async condition, as a coordinator polls a status; bounded."""
    with anyio.fail_after(20):
        while not await condition():  # noqa: ASYNC110
            await anyio.sleep(0.001)


async def collect(chunks):
    """All tokens, all logprobs and the last chunk."""
    token_ids, values, last = [], [], None
    async for chunk in chunks:
        token_ids += chunk.token_ids
        values += chunk.logprobs
        last = chunk
    return token_ids, torch.tensor(values), last
