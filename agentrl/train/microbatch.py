"""A micro-batch: some rows packed together, with the columns of their trained tokens that the objective and the metrics read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from agentrl.train.forest import micro_batches
from agentrl.train.packing import Packed, Ragged, pack
from agentrl.train.rows import TrainRow


@dataclass(frozen=True, slots=True)
class MicroBatch:
    packed: Packed
    sampler_logprobs: Float[Tensor, " trained"]
    advantage: Float[Tensor, " trained"]
    weight: Float[Tensor, " trained"]
    """From the aggregate, over the whole optimizer step"""
    policy_version: Int[Tensor, " trained"]
    kv_oldest_version: Int[Tensor, " trained"]


def cut(rows: Sequence[TrainRow], weights: Mapping[str, float], *, budget: int, device: torch.device) -> Iterator[MicroBatch]:
    """The rows in micro-batches of at most `budget` tokens each, shared ones counted once. `weights`: of each token of an agent run."""
    ragged = [Ragged(found.row.token_ids, found.row.trained, found.row.temperature) for found in rows]
    for indices in micro_batches([row.context for row in ragged], budget):
        packed = pack([ragged[index] for index in indices], device)
        yield _micro_batch([rows[index] for index in indices], packed, weights)


def _micro_batch(rows: Sequence[TrainRow], packed: Packed, weights: Mapping[str, float]) -> MicroBatch:
    def column(of: Callable[[TrainRow], NDArray[np.float32] | NDArray[np.int64]]) -> Tensor:
        return torch.from_numpy(np.concatenate([of(found)[found.row.trained] for found in rows])).to(packed.token_ids.device)

    return MicroBatch(
        packed=packed,
        sampler_logprobs=column(lambda found: found.row.sampler_logprobs),
        advantage=column(lambda found: found.row.advantage),
        weight=column(lambda found: np.full(len(found.row), weights[found.row.agent_run], np.float32)),
        policy_version=column(lambda found: found.row.policy_version),
        kv_oldest_version=column(lambda found: found.kv_oldest_version),
    )
