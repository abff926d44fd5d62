"""Which models the embedded engine serves, and that it proves what it serves."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from agentrl.engine.config import EngineConfig
from agentrl.engine.torch import lean
from agentrl.engine.torch.engine import TorchEngine
from agentrl.engine.torch.model import SlotModel, load_model
from agentrl.episode import Sampling
from agentrl.errors import ConfigError
from tests.unit.engine import tiny_models as tiny

PROMPT = [(7 * i) % tiny.VOCAB for i in range(30)]
SMALL = {"vocab_size": tiny.VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


async def greedy_and_mu(model, slot_model, count=20):
    """The engine's greedy tokens, and its largest error of μ at T = 1."""
    async with TorchEngine(slot_model, EngineConfig()) as engine:
        token_ids, _, _ = await tiny.collect(
            engine.generate(PROMPT, Sampling(max_tokens=count, temperature=0.0), session="", deadline_s=60)
        )
        drawn, values, _ = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=count), session="", deadline_s=60))
    return token_ids, float((values - tiny.logprobs(model, PROMPT, drawn)).abs().max())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("is_lean", [True, False])
async def test_the_lean_forward_and_the_modules_own_agree_with_transformers(kind, is_lean):
    model = tiny.make(kind)
    slots = tiny.slot_model(model, lean=is_lean)
    assert (slots.lean_weights is not None) == is_lean
    token_ids, error = await greedy_and_mu(model, slots)
    assert token_ids == tiny.greedy(model, PROMPT, 20)
    assert error < 1e-4


@pytest.mark.parametrize("change", [{"attention_bias": True, "mlp_bias": True}, {"num_key_value_heads": 4}, {"head_dim": 16}])
async def test_variants_of_llama_run_lean(change):
    model = tiny.make("llama", **change)
    token_ids, error = await greedy_and_mu(model, tiny.slot_model(model))
    assert token_ids == tiny.greedy(model, PROMPT, 20)
    assert error < 1e-4


async def test_another_architecture_runs_through_its_own_module():
    torch.manual_seed(0)
    model = PhiForCausalLM(PhiConfig(**SMALL, max_position_embeddings=256, eos_token_id=None, bos_token_id=None)).eval()
    assert not lean.fits(model.config)
    token_ids, error = await greedy_and_mu(model, tiny.slot_model(model))
    assert token_ids == tiny.greedy(model, PROMPT, 20)
    assert error < 1e-4


def test_the_module_and_the_lean_forward_share_their_memory():
    slots = tiny.slot_model(tiny.make("qwen3"))
    layer = slots.module.model.layers[0]
    assert layer.self_attn.k_proj.weight.untyped_storage().data_ptr() == slots.lean_weights.layers[0].qkv.untyped_storage().data_ptr()
    assert layer.mlp.up_proj.weight.untyped_storage().data_ptr() == slots.lean_weights.layers[0].gate_up.untyped_storage().data_ptr()


def test_sliding_windows_are_refused():
    with pytest.raises(ConfigError, match="sliding window of 16"):
        SlotModel(MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=16)))


def test_hybrid_layers_are_refused():
    config = Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=8, layer_types=["sliding_attention", "full_attention"])
    with pytest.raises(ConfigError, match="layers of kind sliding_attention"):
        SlotModel(Gemma3ForCausalLM(config))


def test_positions_that_depend_on_the_batch_are_refused():
    with pytest.raises(ConfigError, match="dynamic position scaling"):
        tiny.slot_model(tiny.make(rope_scaling={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}))


def test_a_forward_that_disagrees_with_the_models_own_is_refused(monkeypatch):
    monkeypatch.setattr(lean, "silu", torch.relu)
    with pytest.raises(ConfigError, match="differs from the model's own"):
        tiny.slot_model(tiny.make())


def test_a_context_beyond_what_the_model_was_made_for_is_refused():
    with pytest.raises(ConfigError, match="made for 2048"):
        tiny.slot_model(tiny.make(), context_length=4096)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_model(tmp_path, dtype="float32", device="cpu")


async def test_an_engine_opens_a_folder(tmp_path: Path):
    model = tiny.make("qwen2")
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
    free = tiny.greedy(model, PROMPT, 10)
    stop = f"t{free[4]} t{free[5]}"
    sampling = Sampling(max_tokens=10, temperature=0.0, stop=(stop,))
    async with TorchEngine.open(tmp_path, EngineConfig(device="cpu"), name="mine", policy_version=3) as engine:
        token_ids, _, last = await tiny.collect(engine.generate(PROMPT, sampling, session="", deadline_s=60))
        assert engine.capabilities().model == "mine"
    assert (token_ids, last.stop_match, last.spans[0].policy_version) == (free[:6], stop, 3)


_TOKENIZER = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(tiny.VOCAB)}, "unk_token": "t0"},
    "pre_tokenizer": {"type": "Whitespace"},
}


async def test_bfloat16_runs_and_takes_float32_payloads(tmp_path):
    tiny.make("llama").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    update = tiny.publish(tiny.make("llama", seed=1), 1, tmp_path)
    async with TorchEngine.open(tmp_path, EngineConfig(device="cpu"), dtype="bfloat16") as engine:
        token_ids, values, _ = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=20), session="", deadline_s=60))
        assert float((values - tiny.logprobs(model, PROMPT, token_ids)).abs().max()) < 0.25
        await engine.load(update)
        assert engine._model.module.dtype == torch.bfloat16
        _, _, last = await tiny.collect(engine.generate(PROMPT, Sampling(max_tokens=20), session="", deadline_s=60))
    assert last.spans[0].policy_version == 1
