"""One optimizer update, from a minibatch's handles to new weights.

The denominator is fixed before the first forward, so an update is the same however its rows are cut into micro-batches.
"""

import time

import torch
from torch import Tensor, nn

from agentrl.errors import TrainError
from agentrl.ledger.feed import Batch, Minibatch
from agentrl.objective.preset import Objective
from agentrl.objective.tokens import Tokens
from agentrl.train.config import TrainConfig
from agentrl.train.microbatch import cut
from agentrl.train.model import PolicyModel
from agentrl.train.rows import OpenBlob, TrainRow, read_rows, tokens_by_run
from agentrl.train.schedule import learning_rate
from agentrl.train.tally import Tally


class Trainer:
    """Owns the weights, the optimizer and the count of steps. One thread calls it."""

    def __init__(
        self,
        policy: PolicyModel,
        objective: Objective,
        config: TrainConfig,
        open_blob: OpenBlob,
        *,
        held_version: int | None = None,
    ) -> None:
        """`held_version`: the policy_version under which the engines serve the weights that training starts from."""
        self.policy = policy
        self.objective = objective
        self.config = config
        self.open_blob = open_blob
        self.step = 0
        self.held_version = held_version
        self.optimizer = optimizer(policy, config)

    def update(self, minibatch: Minibatch, batch: Batch) -> dict[str, float]:
        """Make the update and return its metrics. Raises TrainError, the weights unchanged, if it cannot be made as asked."""
        if minibatch.step != self.step + 1:
            raise TrainError(
                f"the controller asked for step {minibatch.step} after step {self.step}; resume the run from its last checkpoint"
            )
        started = time.perf_counter()
        rows = read_rows(minibatch, self.open_blob, oldest_version=batch.oldest_version)
        read = time.perf_counter()
        tally = self._accumulate(rows, Tally(policy_version=batch.policy_version, held_version=self.held_version))
        metrics = tally.metrics() | self._apply(minibatch)
        forwarded, train_s = sum(len(found.row) for found in rows), time.perf_counter() - read
        return metrics | {
            "trained_tokens": float(minibatch.trained_tokens),
            "row_tokens": float(forwarded),
            "rows": float(len(rows)),
            "read_s": read - started,
            "train_s": train_s,
            "tokens_per_s": forwarded / train_s,
        }

    def _accumulate(self, rows: list[TrainRow], tally: Tally) -> Tally:
        """Gradients of the whole minibatch."""
        weights = self.objective.aggregate(tokens_by_run(rows))
        for micro in cut(rows, weights, budget=self.config.max_tokens_per_microbatch, device=self.policy.device):
            head = self.policy.logprobs(micro.packed)
            loss = self.objective.loss(
                Tokens(
                    trainer_logprobs=head.logprobs,
                    sampler_logprobs=micro.sampler_logprobs,
                    advantage=micro.advantage,
                    weight=micro.weight,
                )
            )
            loss.value.backward()  # type: ignore[no-untyped-call]
            tally.add(micro, head, loss)
        return tally

    def _apply(self, minibatch: Minibatch) -> dict[str, float]:
        """Clip, step, count. At learning rate 0 the weights are not touched."""
        lr = learning_rate(self.config, minibatch.step)
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters() if p.grad is not None])
        if not bool(torch.isfinite(norm)):
            self.optimizer.zero_grad()
            raise TrainError(
                f"step {minibatch.step}: the gradient's norm is {float(norm)}; the weights are left as they were. "
                "Lower train.lr or train.grad_clip, and look at the step's gap_nats_max"
            )
        if minibatch.trained_tokens and lr > 0:
            if self.config.grad_clip:
                nn.utils.clip_grads_with_norm_(self._parameters(), self.config.grad_clip, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.held_version = None
        self.optimizer.zero_grad()
        self.step = minibatch.step
        return {"lr": lr, "grad_norm": float(norm)}

    def _parameters(self) -> list[Tensor]:
        return [parameter for _, parameter in self.policy.named_parameters()]


def optimizer(policy: PolicyModel, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms and biases do not."""
    named = [parameter for _, parameter in policy.named_parameters()]
    groups = [
        {"params": [p for p in named if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
