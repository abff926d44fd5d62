"""Log-probabilities of given tokens, in fp32, without ever holding [tokens, vocab].

At a vocabulary of 32k the logits of 8k tokens are a gigabyte, and autograd would keep several such tensors. Only one number per token
leaves the head, so the logits are made in chunks, twice: once for the value, once more for the gradient.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_LOGITS = {"cpu": 1 << 20, "mps": 1 << 24, "cuda": 1 << 26}
"""Logits held at a time: what stays in a CPU's cache, and what fills a GPU."""
LEAST_ROWS = 128
"""Fewer, and reading the matrix costs more than multiplying it."""


class HeadOutput(NamedTuple):
    logprobs: Float[Tensor, " tokens"]
    """nats, of softmax(logits / temperature); carries the gradient"""
    entropy: Float[Tensor, " tokens"]
    """nats, of the same distribution; no gradient"""


def logprobs_of(
    hidden: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocab width"],
    bias: Float[Tensor, " vocab"] | None,
    targets: Int[Tensor, " tokens"],
    temperature: Float[Tensor, " tokens"],
) -> HeadOutput:
    """log softmax((W h + b) / T)[target] of each token. Products of half-precision values are summed in fp32."""
    return HeadOutput(*_ChunkedHead.apply(hidden, weight, bias, targets, temperature))  # type: ignore[no-untyped-call]


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy, normaliser = (torch.empty(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(3))
        factor = _factor(weight, hidden)
        for at in _chunks(hidden, weight):
            logits = _logits(hidden[at], factor, bias, temperature[at])
            peak = logits.amax(-1, keepdim=True)
            mass = (logits - peak).exp_()
            total = mass.sum(-1)
            normaliser[at] = peak[:, 0] + total.log()
            logprobs[at] = logits.gather(1, targets[at, None])[:, 0] - normaliser[at]
            entropy[at] = normaliser[at] - mass.mul_(logits).sum(-1) / total
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, normaliser)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperature, normaliser = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        factor = _factor(weight, hidden)
        for at in _chunks(hidden, weight):
            scale = (grads[0][at] / temperature[at])[:, None]
            # d logprob / d logit = (onehot - softmax) / T
            grad_logits = _logits(hidden[at], factor, bias, temperature[at]).sub_(normaliser[at, None]).exp_().mul_(-scale)
            grad_logits.scatter_add_(1, targets[at, None], scale)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            grad_logits = grad_logits.to(factor.dtype)
            grad_hidden[at] = (grad_logits @ factor).to(hidden.dtype)
            _add_product(grad_weight, grad_logits.T, hidden[at].to(factor.dtype))
        return grad_hidden, grad_weight.to(weight.dtype), grad_bias, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in place where the dtypes allow: a temporary of the head's whole matrix for each chunk would cost more."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    rows = max(LEAST_ROWS, CHUNK_LOGITS.get(hidden.device.type, CHUNK_LOGITS["cpu"]) // len(weight))
    return [slice(start, start + rows) for start in range(0, len(hidden), rows)]


def _factor(weight: Tensor, hidden: Tensor) -> Tensor:
    """The head's matrix, rounded to the sampler's precision. Multiplied in fp32, but on a GPU, which sums products of halves in fp32."""
    rounded = weight.to(hidden.dtype)
    return rounded if hidden.is_cuda else rounded.float()


def _logits(hidden: Tensor, factor: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    """[chunk, vocab] fp32, over the temperature."""
    halves = factor.dtype != torch.float32
    logits = torch.mm(hidden, factor.T, out_dtype=torch.float32) if halves else hidden.float() @ factor.T
    if bias is not None:
        logits += bias
    return logits.div_(temperature[:, None])
