"""Causal attention over packed sequences, for any Hugging Face model.

Rows are laid end to end in one row of tokens, so that no projection or MLP computes padding. Attention alone must keep them apart. A causal
row padded on the right needs no mask: real queries come before the padding and never look at it. So sequences of like length are
padded together and share one call of the plain causal kernel, which also skips the upper triangle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import ConfigError

PACKED = "agentrl_packed"
"""The name under which transformers finds this attention."""

SHORTEST_OF_LONGEST = 0.8
"""A bucket takes sequences down to this share of its longest: padding against calls."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive sequences of like length."""

    tokens: int
    sequences: int
    longest: int
    slots: Int[Tensor, " tokens"] | None
    """Where each token lies in [sequences · longest]; None: they are all equally long."""


@dataclass(frozen=True, slots=True)
class Segments:
    """How the packed row falls into sequences."""

    lengths: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    offsets: Int[Tensor, " sequences+1"]
    """int32, where each sequence starts, and the end"""


def segments(lengths: Sequence[int], device: torch.device) -> Segments:
    """Cheap when like lengths are neighbours; right in any order."""
    buckets, first = [], 0
    while first < len(lengths):
        last, shortest, longest = first, lengths[first], lengths[first]
        while last < len(lengths):
            shortest, longest = min(shortest, lengths[last]), max(longest, lengths[last])
            if shortest < SHORTEST_OF_LONGEST * longest:
                break
            last += 1
        buckets.append(_bucket(lengths[first:last], device))
        first = last
    offsets = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
    return Segments(lengths=tuple(lengths), buckets=tuple(buckets), offsets=offsets)


def _bucket(lengths: Sequence[int], device: torch.device) -> Bucket:
    longest = max(lengths)
    slots = None
    if min(lengths) < longest:
        slots = torch.cat([torch.arange(length) + i * longest for i, length in enumerate(lengths)]).to(device)
    return Bucket(tokens=sum(lengths), sequences=len(lengths), longest=longest, slots=slots)


def register() -> None:
    """Make the attention known to transformers. Idempotent."""
    AttentionInterface.register(PACKED, packed_attention)


def packed_attention(
    module: nn.Module,
    query: Float[Tensor, "1 heads tokens width"],
    key: Float[Tensor, "1 kv_heads tokens width"],
    value: Float[Tensor, "1 kv_heads tokens width"],
    attention_mask: Tensor | None,
    *,
    packed: Segments,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Float[Tensor, "1 tokens heads width"], None]:
    """`packed` comes through the model's keyword arguments. Dropout is ignored: π must be that of the model that sampled."""
    beyond = [name for name in ("sliding_window", "softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if beyond or attention_mask is not None:
        raise ConfigError(
            f"the model's attention uses {', '.join(beyond) or 'a mask'}, which the trainer cannot pack; use a full-attention model"
        )
    if query.is_cuda and query.dtype != torch.float32:
        return _varlen(query, key, value, packed, scaling), None
    return _bucketed(query, key, value, packed, scaling), None


def _varlen(query: Tensor, key: Tensor, value: Tensor, packed: Segments, scaling: float | None) -> Tensor:
    """FlashAttention's own packed form: half precision on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    longest, at = max(packed.lengths), packed.offsets
    grouped = key.shape[1] != query.shape[1]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = varlen_attn(q, k, v, at, at, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=grouped)
    assert isinstance(out, Tensor)
    return out[None]


def _bucketed(query: Tensor, key: Tensor, value: Tensor, packed: Segments, scaling: float | None) -> Tensor:
    grouped = key.shape[1] != query.shape[1]
    # split and not slices: the gradient of a split is one concatenation, that of a slice is a whole row of zeros each.
    sizes = [bucket.tokens for bucket in packed.buckets]
    pieces = (torch.split(x[0].transpose(0, 1), sizes) for x in (query, key, value))
    outputs = []
    for bucket, *qkv in zip(packed.buckets, *pieces, strict=True):
        q, k, v = (_pad(x, bucket).transpose(1, 2) for x in qkv)
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped)
        outputs.append(_unpad(out.transpose(1, 2), bucket))
    return torch.cat(outputs)[None]


def _pad(x: Tensor, bucket: Bucket) -> Tensor:
    """[tokens, heads, width] to [sequences, longest, heads, width]"""
    if bucket.slots is not None:
        x = _Scatter.apply(x, bucket.slots, bucket.sequences * bucket.longest)  # type: ignore[no-untyped-call]
    return x.reshape(bucket.sequences, bucket.longest, *x.shape[1:])


def _unpad(x: Tensor, bucket: Bucket) -> Tensor:
    """The inverse of _pad."""
    flat = x.reshape(bucket.sequences * bucket.longest, *x.shape[2:])
    if bucket.slots is None:
        return flat
    gathered: Tensor = _Gather.apply(flat, bucket.slots)  # type: ignore[no-untyped-call]
    return gathered


class _Scatter(torch.autograd.Function):
    """x[i] to out[slots[i]], zeros elsewhere. The adjoint is a gather; autograd's own would add into shared places one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, size: int) -> Tensor:
        ctx.slots = slots
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, slots, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].index_select(0, ctx.slots), None, None


class _Gather(torch.autograd.Function):
    """x[slots]: the adjoint of _Scatter, as no slot is taken twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor) -> Tensor:
        ctx.slots, ctx.size = slots, len(x)
        return x.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].new_zeros(ctx.size, *grads[0].shape[1:]).index_copy_(0, ctx.slots, grads[0]), None
