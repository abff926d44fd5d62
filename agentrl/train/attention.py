"""Causal attention over packed stretches, for any Hugging Face model.

Stretches are laid end to end in one row of tokens, so that no projection or MLP computes padding or a shared token twice. Attention alone
must know what each may see: its own path. A stretch that starts its row needs no mask: padded on the right, real queries come before the
padding and never look at it. One that goes on from others reads the keys of its path, gathered, under a mask. Stretches of like length are
padded together and share one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import ConfigError
from agentrl.train.forest import Stretch

PACKED = "agentrl_packed"
"""The name under which transformers finds this attention."""

SHORTEST_OF_LONGEST, SLACK = 0.8, 8
"""A bucket takes lengths down to this share of its longest, less this many tokens: padding against calls."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The keys of a bucket whose stretches go on from others."""

    longest: int
    slots: Int[Tensor, " sequences*longest"]
    """Where in the packed row each key lies; past the end of a path, anywhere"""
    mask: Bool[Tensor, "sequences 1 queries longest"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive stretches of like length, that read like many keys."""

    tokens: int
    sequences: int
    longest: int
    slots: Int[Tensor, " tokens"] | None
    """Where each token lies in [sequences · longest]; None: they are all equally long."""
    reads: Reads | None
    """None: each starts its row, and reads itself alone"""


class Varlen(NamedTuple):
    """The stretches as FlashAttention takes them."""

    query_offsets: Int[Tensor, " stretches+1"]
    key_offsets: Int[Tensor, " stretches+1"]
    keys: Int[Tensor, " keys"] | None
    """Where in the packed row each key lies; None: each stretch reads itself alone"""
    longest_query: int
    longest_path: int


@dataclass(frozen=True)
class Segments:
    """How the packed row falls into stretches."""

    stretches: tuple[Stretch, ...]
    """As the forest has them"""
    groups: tuple[tuple[int, ...], ...]
    """The stretches' indices in the order of the packed row, those that share a bucket together"""
    paths: tuple[NDArray[np.int64], ...]
    """Of each stretch, where in the packed row the tokens from its row's start to its own end lie"""
    device: torch.device

    @property
    def order(self) -> list[int]:
        return [index for group in self.groups for index in group]

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        return tuple(self._bucket(group) for group in self.groups)

    @cached_property
    def varlen(self) -> Varlen:
        own = [len(self.stretches[index]) for index in self.order]
        read = [self.stretches[index].stop for index in self.order]
        query_offsets, key_offsets = (torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=self.device) for sizes in (own, read))
        keys = None
        if own != read:
            keys = torch.from_numpy(np.concatenate([self.paths[index] for index in self.order])).to(self.device)
        return Varlen(query_offsets, key_offsets, keys, max(own), max(read))

    def _bucket(self, group: tuple[int, ...]) -> Bucket:
        lengths = [len(self.stretches[index]) for index in group]
        longest = max(lengths)
        slots = None
        if min(lengths) < longest:
            slots = torch.cat([torch.arange(length) + i * longest for i, length in enumerate(lengths)]).to(self.device)
        reads = None if self.stretches[group[0]].parent is None else self._reads(group, longest)
        return Bucket(tokens=sum(lengths), sequences=len(group), longest=longest, slots=slots, reads=reads)

    def _reads(self, group: tuple[int, ...], queries: int) -> Reads:
        longest = max(self.stretches[index].stop for index in group)
        slots = np.zeros((len(group), longest), np.int64)
        for line, index in zip(slots, group, strict=True):
            line[: len(self.paths[index])] = self.paths[index]
        # A key's place in its path is its position, so a query looks as far as its own position.
        position = np.array([self.stretches[index].start for index in group])[:, None] + np.arange(queries)
        mask = np.arange(longest) <= position[:, None, :, None]
        return Reads(longest, torch.from_numpy(slots.reshape(-1)).to(self.device), torch.from_numpy(mask).to(self.device))


def segments(stretches: Sequence[Stretch], device: torch.device) -> Segments:
    """Parents before their children."""
    groups = _groups(stretches)
    starts = np.zeros(len(stretches), np.int64)
    order = [index for group in groups for index in group]
    starts[order] = [0, *accumulate(len(stretches[index]) for index in order[:-1])]
    paths: list[NDArray[np.int64]] = []
    for stretch, start in zip(stretches, starts, strict=True):
        own = np.arange(start, start + len(stretch))
        paths.append(own if stretch.parent is None else np.concatenate([paths[stretch.parent], own]))
    return Segments(tuple(stretches), groups, tuple(paths), device)


def _groups(stretches: Sequence[Stretch]) -> tuple[tuple[int, ...], ...]:
    roots = [index for index, stretch in enumerate(stretches) if stretch.parent is None]
    others = [index for index, stretch in enumerate(stretches) if stretch.parent is not None]
    groups = _alike(roots, lambda index: len(stretches[index]))
    for like in _alike(others, lambda index: len(stretches[index])):
        groups += _alike(like, lambda index: stretches[index].stop)
    return tuple(map(tuple, groups))


def _alike(indices: Sequence[int], size: Callable[[int], int]) -> list[list[int]]:
    """The largest first, cut where the next is too small to be padded."""
    groups: list[list[int]] = []
    for index in sorted(indices, key=lambda index: -size(index)):
        if groups and size(index) >= SHORTEST_OF_LONGEST * size(groups[-1][0]) - SLACK:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


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
    """FlashAttention's own packed form: half precision on a GPU. Its causal mask lets the last query see the last key."""
    from torch.nn.attention.varlen import varlen_attn

    at = packed.varlen
    grouped = key.shape[1] != query.shape[1]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if at.keys is not None:
        k, v = k.index_select(0, at.keys), v.index_select(0, at.keys)
    out = varlen_attn(
        q, k, v, at.query_offsets, at.key_offsets, at.longest_query, at.longest_path,
        scale=scaling, window_size=(-1, 0), enable_gqa=grouped,
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out[None]


def _bucketed(query: Tensor, key: Tensor, value: Tensor, packed: Segments, scaling: float | None) -> Tensor:
    grouped = key.shape[1] != query.shape[1]
    q_row, k_row, v_row = (x[0].transpose(0, 1) for x in (query, key, value))
    # split and not slices: the gradient of a split is one concatenation, that of a slice is a whole row of zeros each.
    sizes = [bucket.tokens for bucket in packed.buckets]
    outputs = []
    for bucket, *own in zip(packed.buckets, *(torch.split(row, sizes) for row in (q_row, k_row, v_row)), strict=True):
        q = _pad(own[0], bucket).transpose(1, 2)
        if bucket.reads is None:
            k, v = (_pad(x, bucket).transpose(1, 2) for x in own[1:])
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped)
        else:
            k, v = (_read(row, bucket.reads, bucket.sequences).transpose(1, 2) for row in (k_row, v_row))
            out = scaled_dot_product_attention(q, k, v, attn_mask=bucket.reads.mask, scale=scaling, enable_gqa=grouped)
        outputs.append(_unpad(out.transpose(1, 2), bucket))
    return torch.cat(outputs)[None]


def _read(row: Tensor, reads: Reads, sequences: int) -> Tensor:
    """[tokens, heads, width] to [sequences, longest, heads, width]"""
    return row.index_select(0, reads.slots).reshape(sequences, reads.longest, *row.shape[1:])


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
