"""From rows to micro-batches of one packed row each: no padding, and what rows share from their start only once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from agentrl.train.attention import Segments, segments
from agentrl.train.forest import LEAST_SHARED, grow


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
        if not self.trained.any():
            raise ValueError("a row without a trained token has nothing to score; leave it away")

    @property
    def context(self) -> NDArray[np.int32]:
        """What the model must read: the tokens before the last trained one. Nothing is asked of those from there on."""
        return self.token_ids[: int(np.flatnonzero(self.trained)[-1])]


@dataclass(frozen=True, slots=True)
class Packed:
    """Stretches end to end, in one row."""

    token_ids: Int[Tensor, "1 tokens"]
    position: Int[Tensor, "1 tokens"]
    """In the token's row, from 0"""
    segments: Segments
    predictors: Int[Tensor, " trained"]
    """Where in the packed row the output lies that predicts each trained token: at the token before it in its row"""
    targets: Int[Tensor, " trained"]
    temperature: Float[Tensor, " trained"]


def pack(rows: Sequence[Ragged], device: torch.device, *, least_shared: int = LEAST_SHARED) -> Packed:
    """Trained tokens are in the order of the rows."""
    contexts = [row.context for row in rows]
    forest = grow(contexts, least_shared)
    laid = segments(forest.stretches, device)
    stretches = [forest.stretches[index] for index in laid.order]
    trained = [np.flatnonzero(row.trained) for row in rows]
    predictors = np.concatenate([laid.paths[end][at - 1] for end, at in zip(forest.ends, trained, strict=True)])
    targets = np.concatenate([row.token_ids[at] for row, at in zip(rows, trained, strict=True)]).astype(np.int64)
    temperature = np.concatenate([row.temperature[at] for row, at in zip(rows, trained, strict=True)])
    token_ids = np.concatenate([contexts[stretch.row][stretch.start : stretch.stop] for stretch in stretches]).astype(np.int64)
    position = np.concatenate([np.arange(stretch.start, stretch.stop) for stretch in stretches])
    return Packed(
        token_ids=torch.from_numpy(token_ids)[None].to(device),
        position=torch.from_numpy(position)[None].to(device),
        segments=laid,
        predictors=torch.from_numpy(predictors).to(device),
        targets=torch.from_numpy(targets).to(device),
        temperature=torch.from_numpy(temperature).to(device),
    )
