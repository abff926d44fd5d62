"""One attention for a packed step: every running call's newest token, and chunks of prompts, in one sequence of tokens.

A packed step has no batch dimension and no padding, so all of the model but the attention runs on exactly the tokens that need it. Within
an arena the newest tokens of all rows come first (one attention over the arena's rows in place), then the rest of the prompts' chunks (one
attention each). Keys and values of all of them are written before any attention reads.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agentrl.engine.torch.call import Call
from agentrl.engine.torch.slots import Arena

NAME = "agentrl_slots"
"""Under which `attend` is registered with transformers."""


@dataclass(slots=True)
class Stretch:
    """A prompt chunk without its last token: packed tokens [start, stop) of one row, at positions [offset, offset + stop - start)."""

    start: int
    stop: int
    row: int
    offset: int
    mask: Tensor | None
    """[chunk, offset + chunk] additive; None: causal from position 0."""


@dataclass(slots=True)
class ArenaPlan:
    """The packed tokens [start, stop) that belong to one arena; the first `rows` of them are the rows' newest tokens."""

    layers: list[tuple[Tensor, Tensor]]
    row_length: int
    start: int
    stop: int
    rows: int
    places: Tensor
    """[stop - start] where each token's keys and values go: row * row_length + position"""
    longest: int
    mask: Tensor
    """[rows, 1, 1, longest] additive"""
    stretches: list[Stretch]


@dataclass(slots=True)
class Plan:
    """One forward."""

    token_ids: Tensor
    """[1, tokens]"""
    positions: Tensor
    """[1, tokens]"""
    arenas: list[ArenaPlan]
    keep: Tensor
    """[sampling] packed tokens whose logits are wanted, ascending"""
    sampling: list[Call]
    """Calls that draw a token after this forward, aligned with keep."""
    chunks: list[tuple[Call, int]]
    """How many tokens each call computes."""


class Planner:
    """Makes plans. Masks come out of one triangle that is made once."""

    def __init__(self, *, context_length: int, dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        self._columns = torch.arange(context_length, device=device)
        self._zero = torch.zeros((), dtype=dtype, device=device)
        self._hidden = torch.full((), -torch.inf, dtype=dtype, device=device)

    def plan(self, arenas: list[Arena], take: dict[Call, int]) -> Plan:
        """A forward over every seated call. `take` has the chunk length of calls that compute more than one token."""
        token_ids: list[int] = []
        positions: list[int] = []
        keep: list[int] = []
        sampling: list[Call] = []
        chunks: list[tuple[Call, int]] = []
        plans: list[ArenaPlan] = []
        for arena in arenas:
            if not arena.calls:
                continue
            start = len(token_ids)
            stretches: list[Stretch] = []
            for call in arena.calls:
                count = take.get(call, 1)
                newest = call.kv_len + count - 1
                if newest + 1 == len(call.tokens):
                    keep.append(len(token_ids))
                    sampling.append(call)
                token_ids.append(call.tokens[newest])
                positions.append(newest)
                chunks.append((call, count))
            rows = list(range(len(arena.calls)))
            for call in arena.calls if take else ():
                count = take.get(call, 1) - 1
                if count > 0:
                    at = len(token_ids)
                    stretches.append(Stretch(at, at + count, call.row, call.kv_len, self._causal(call.kv_len, count)))
                    token_ids += call.tokens[call.kv_len : call.kv_len + count]
                    positions += range(call.kv_len, call.kv_len + count)
                    rows += [call.row] * count
            plans.append(self._arena(arena, start, rows, positions, stretches))
        return Plan(
            token_ids=self._long(token_ids)[None],
            positions=self._long(positions)[None],
            arenas=plans,
            keep=self._long(keep),
            sampling=sampling,
            chunks=chunks,
        )

    def _arena(self, arena: Arena, start: int, rows: list[int], positions: list[int], stretches: list[Stretch]) -> ArenaPlan:
        at = self._long(positions[start:])
        count = len(arena.calls)
        longest = max(positions[start : start + count]) + 1
        seen = self._columns[:longest] <= at[:count, None, None, None]
        return ArenaPlan(
            layers=arena.layers,
            row_length=arena.length,
            start=start,
            stop=len(positions),
            rows=count,
            places=self._long(rows) * arena.length + at,
            longest=longest,
            mask=torch.where(seen, self._zero, self._hidden),
            stretches=stretches,
        )

    def _causal(self, offset: int, count: int) -> Tensor | None:
        if offset == 0:
            return None
        seen = self._columns[: offset + count] <= self._columns[offset : offset + count, None]
        return torch.where(seen, self._zero, self._hidden)

    def _long(self, values: list[int]) -> Tensor:
        # By way of numpy, which reads a list five times as fast.
        return torch.from_numpy(np.array(values, np.int64)).to(self._device)


def attend(plan: Plan, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """[tokens, heads, head_dim] for query [tokens, heads, head_dim] and key, value [tokens, kv_heads, head_dim]."""
    heads, head_dim = query.shape[1:]
    kv_heads = key.shape[1]
    key, value = key.flatten(1), value.flatten(1)
    outputs: list[Tensor] = []
    for part in plan.arenas:
        keys, values = part.layers[layer]
        keys.index_copy_(0, part.places, key[part.start : part.stop])
        values.index_copy_(0, part.places, value[part.start : part.stop])
        keys, values = (held.view(-1, part.row_length, kv_heads, head_dim).transpose(1, 2) for held in (keys, values))
        newest = query[part.start : part.start + part.rows].reshape(part.rows, kv_heads, heads // kv_heads, head_dim)
        rows = slice(0, part.rows)
        seen = scaled_dot_product_attention(
            newest, keys[rows, :, : part.longest], values[rows, :, : part.longest], attn_mask=part.mask, scale=scale
        )
        outputs.append(seen.reshape(part.rows, heads, head_dim))
        for stretch in part.stretches:
            end = stretch.offset + stretch.stop - stretch.start
            # Heads that share keys are a dimension of their own, over which the keys are repeated without a copy.
            chunk = scaled_dot_product_attention(
                query[stretch.start : stretch.stop].view(-1, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3),
                keys[stretch.row, :, None, :end].expand(-1, heads // kv_heads, -1, -1),
                values[stretch.row, :, None, :end].expand(-1, heads // kv_heads, -1, -1),
                attn_mask=stretch.mask,
                is_causal=stretch.mask is None,
                scale=scale,
            )
            outputs.append(chunk.permute(2, 0, 1, 3).flatten(1, 2))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def transformers_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, scaling: float | None = None, **kwargs: Any
) -> tuple[Tensor, None]:
    """`attend` as transformers calls it: query [1, heads, tokens, head_dim]; returns [1, tokens, heads, head_dim]."""
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return attend(kwargs["slots_plan"], module.layer_idx, query, key, value, scaling)[None], None
