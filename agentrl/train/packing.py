"""From ragged rows to micro-batches of one packed row each: no padding, under a token budget.

The rows are sorted by length first, so that neighbours in a packed row are of like length, which is what its attention wants.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from agentrl.train.attention import Segments, segments


@dataclass(frozen=True, slots=True)
class Ragged:
    """One sequence to run the model over, and which of its tokens to score."""

    token_ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    """[tokens] False at token 0, which nothing predicts"""
    temperature: NDArray[np.float32]
    """[tokens]"""

    def __post_init__(self) -> None:
        if bool(self.trained[:1].any()):
            raise ValueError("token 0 of a row cannot be trained: nothing predicts it")


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences end to end, in one row."""

    token_ids: Int[Tensor, "1 tokens"]
    position: Int[Tensor, "1 tokens"]
    """From 0 in every sequence"""
    segments: Segments
    predictors: Int[Tensor, " trained"]
    """Where in the packed row the output lies that predicts each trained token: one before it"""
    targets: Int[Tensor, " trained"]
    temperature: Float[Tensor, " trained"]


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of the rows of each micro-batch, longest first. Only a row that alone is over the budget goes over it."""
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or lengths[index] > room:
            batches.append([])
            room = budget
        batches[-1].append(index)
        room -= lengths[index]
    return batches


def pack(rows: Sequence[Ragged], device: torch.device) -> Packed:
    """The rows in the order given. What follows a row's last trained token predicts nothing of interest, so it is left away."""
    lengths = [_useful(row) for row in rows]
    trained = np.concatenate([row.trained[:n] for row, n in zip(rows, lengths, strict=True)])
    token_ids = np.concatenate([row.token_ids[:n] for row, n in zip(rows, lengths, strict=True)])
    temperature = np.concatenate([row.temperature[:n] for row, n in zip(rows, lengths, strict=True)])
    at = np.flatnonzero(trained)
    return Packed(
        token_ids=torch.from_numpy(token_ids.astype(np.int64))[None].to(device),
        position=torch.cat([torch.arange(n) for n in lengths])[None].to(device),
        segments=segments(lengths, device),
        predictors=torch.from_numpy(at - 1).to(device),
        targets=torch.from_numpy(token_ids[at].astype(np.int64)).to(device),
        temperature=torch.from_numpy(temperature[at]).to(device),
    )


def _useful(row: Ragged) -> int:
    """Tokens up to the last trained one, which itself need not be fed but keeps the arithmetic plain."""
    return int(np.flatnonzero(row.trained)[-1]) + 1 if row.trained.any() else len(row.token_ids)
