"""The forward of Llama- and Qwen-shaped models in as few operations as it takes.

A small model decodes 64 sequences in about a millisecond, and then the module tree of transformers costs more than the arithmetic: a lean
step takes less than half the time. The mathematics is the same (three projections, and two, are fused into one matrix each), and the proof
at start-up compares with the model's own forward like any other. The module keeps views of the fused weights, so nothing is held twice.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from agentrl.engine.torch.attention import Plan, attend

_MODEL_TYPES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. Biases are None where the model has none."""

    norm: Tensor
    qkv: Tensor
    """[(heads + 2 * kv_heads) * head_dim, hidden]"""
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim] Qwen3's norms of queries and keys, spread over the heads"""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 * intermediate, hidden]"""
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor


def fits(config: Any) -> bool:
    """Whether the lean forward knows this kind of model."""
    return config.model_type in _MODEL_TYPES and config.hidden_act == "silu"


class LeanDecoder:
    """The forward, without weights of its own."""

    def __init__(self, module: Any, *, context_length: int) -> None:
        config = module.config
        self._layers = int(config.num_hidden_layers)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // self._heads)
        self._hidden = (int(config.hidden_size),)
        self._eps = float(config.rms_norm_eps)
        self._scale = self._head_dim**-0.5
        positions = torch.arange(context_length, device=module.device)[None]
        with torch.no_grad():
            cos, sin = module.model.rotary_emb(torch.empty(0, dtype=module.dtype, device=module.device), positions)
        half = self._head_dim // 2
        # x·cos + (-x2, x1)·sin, with the sign moved into the table so that the halves are only rolled.
        self._cos: Tensor = cos[0][:, None]
        self._sin: Tensor = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]

    def fuse(self, tensors: MutableMapping[str, Tensor]) -> Weights:
        """Weights from a model's tensors by name; those that were fused are replaced in `tensors` by views of the whole."""
        return Weights(
            embed=tensors["model.embed_tokens.weight"],
            layers=tuple(self._layer(tensors, f"model.layers.{index}.") for index in range(self._layers)),
            norm=tensors["model.norm.weight"],
            head=tensors["lm_head.weight"],
        )

    def _layer(self, tensors: MutableMapping[str, Tensor], at: str) -> Layer:
        attention, mlp = at + "self_attn.", at + "mlp."
        qkv = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        gate_up = [mlp + name for name in ("gate_proj", "up_proj")]
        qk_norm = None
        if attention + "q_norm.weight" in tensors:
            spread = ((attention + "q_norm.weight", self._heads), (attention + "k_norm.weight", self._kv_heads))
            qk_norm = torch.cat([tensors[name].expand(heads, -1) for name, heads in spread])
        return Layer(
            norm=tensors[at + "input_layernorm.weight"],
            qkv=_join(tensors, [name + ".weight" for name in qkv]),
            qkv_bias=_join(tensors, [name + ".bias" for name in qkv]) if qkv[0] + ".bias" in tensors else None,
            qk_norm=qk_norm,
            out=tensors[attention + "o_proj.weight"],
            out_bias=tensors.get(attention + "o_proj.bias"),
            mlp_norm=tensors[at + "post_attention_layernorm.weight"],
            gate_up=_join(tensors, [name + ".weight" for name in gate_up]),
            gate_up_bias=_join(tensors, [name + ".bias" for name in gate_up]) if gate_up[0] + ".bias" in tensors else None,
            down=tensors[mlp + "down_proj.weight"],
            down_bias=tensors.get(mlp + "down_proj.bias"),
        )

    def forward(self, weights: Weights, plan: Plan) -> Tensor:
        """[sampling, vocab] logits after the tokens plan.keep."""
        heads, rotated, all_heads = self._heads, self._heads + self._kv_heads, self._heads + 2 * self._kv_heads
        token_ids, positions = plan.token_ids[0], plan.positions[0]
        cos, sin = self._cos[positions], self._sin[positions]
        x = embedding(token_ids, weights.embed)
        for index, layer in enumerate(weights.layers):
            qkv = linear(rms_norm(x, self._hidden, layer.norm, self._eps), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(-1, all_heads, self._head_dim)
            qk = qkv[:, :rotated]
            if layer.qk_norm is not None:
                qk = rms_norm(qk, (self._head_dim,), None, self._eps) * layer.qk_norm
            qk = torch.addcmul(qk * cos, qk.roll(self._head_dim // 2, -1), sin)
            seen = attend(plan, index, qk[:, :heads], qk[:, heads:], qkv[:, rotated:], self._scale).flatten(1)
            if index == self._layers - 1 and len(plan.keep) < len(token_ids):
                # Beyond the last attention, tokens whose logits nobody wants need nothing more.
                x, seen = x[plan.keep], seen[plan.keep]
            x = x + linear(seen, layer.out, layer.out_bias)
            gate, up = linear(rms_norm(x, self._hidden, layer.mlp_norm, self._eps), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = x + linear(silu(gate) * up, layer.down, layer.down_bias)
        return linear(rms_norm(x, self._hidden, weights.norm, self._eps), weights.head)


def _join(tensors: MutableMapping[str, Tensor], names: list[str]) -> Tensor:
    """Concatenate along the outputs, and leave views of the result in place of the parts."""
    parts = [tensors[name] for name in names]
    whole = torch.cat(parts)
    start = 0
    for name, part in zip(names, parts, strict=True):
        tensors[name] = whole[start : start + len(part)]
        start += len(part)
    return whole
