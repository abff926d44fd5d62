"""Supervised learning on demonstrations: the fewest updates that give a model which speaks the format and holds the skill somewhere.

Matrices are updated by Muon (orthogonalised momentum, arXiv:2502.16982), which needs about half the updates of AdamW here; embedding, head
and norms by AdamW.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaForCausalLM

from agentrl.train.tiny.recipe import WarmStart

Batch = list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
"""Per conversation (token ids, written by the assistant), aligned."""


class Progress(msgspec.Struct, frozen=True):
    """Of a preparation."""

    step: int
    steps: int
    loss: float
    """nats per weighted token"""


def warm_start(model: LlamaForCausalLM, batches: Iterator[Batch], recipe: WarmStart, progress: Callable[[Progress], None]) -> None:
    """Train `model` in place; equal seeds give equal weights."""
    with _one_thread():
        _train(model, batches, recipe, progress)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Faster than several at this size, and sums are made in one order whatever machine it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(model: LlamaForCausalLM, batches: Iterator[Batch], recipe: WarmStart, progress: Callable[[Progress], None]) -> None:
    optimizers = _optimizers(model, recipe)
    peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    model.train()
    for step in range(recipe.steps):
        scale = min((step + 1) / recipe.warmup_steps, 1.0) * (1 - step / recipe.steps)
        for group, peak in zip((group for optimizer in optimizers for group in optimizer.param_groups), peaks, strict=True):
            group["lr"] = peak * scale
        loss = _loss(model, next(batches), recipe.listening)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        progress(Progress(step=step + 1, steps=recipe.steps, loss=loss.item()))
    model.eval()


def _optimizers(model: LlamaForCausalLM, recipe: WarmStart) -> list[torch.optim.Optimizer]:
    inner = [parameter for name, parameter in model.named_parameters() if parameter.ndim == 2 and "embed" not in name]
    chosen = {id(parameter) for parameter in inner}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return [
        torch.optim.Muon(inner, lr=recipe.matrix_lr, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(rest, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _loss(model: Any, batch: Batch, listening: float) -> Float[Tensor, ""]:
    """Weighted mean of -log p over all tokens but the opening's first; no mask is needed, as padding stands behind every row."""
    token_ids, weight = _padded(batch, listening)
    logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), token_ids[:, 1:].flatten(), reduction="none")
    weight = weight[:, 1:].flatten()
    return (nats * weight).sum() / weight.sum()


def _padded(batch: Batch, listening: float) -> tuple[Int[Tensor, "rows tokens"], Float[Tensor, "rows tokens"]]:
    longest = max(len(ids) for ids, _ in batch)
    token_ids = np.zeros((len(batch), longest), dtype=np.int64)
    weight = np.zeros((len(batch), longest), dtype=np.float32)
    for row, (ids, written) in enumerate(batch):
        token_ids[row, : len(ids)] = ids
        weight[row, : len(ids)] = np.where(written, 1.0, listening)
    return torch.from_numpy(token_ids), torch.from_numpy(weight)
