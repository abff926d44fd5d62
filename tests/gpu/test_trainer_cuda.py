"""The trainer's CUDA paths against the CPU's numbers."""

import pytest
import torch
from torch.testing import assert_close

from agentrl.train.model import PolicyModel
from agentrl.train.packing import Ragged, pack
from tests.unit.train.models import group, ragged, tiny_llama

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
APART = [ragged(n, seed=n) for n in (70, 33, 32, 31, 5)]
SHARED = [*group(40, (30, 12, 12, 11, 1, 3)), *group(25, (40, 2), seed=1), *APART]


def on_cpu(rows: list[Ragged], *, kv_heads: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    policy = PolicyModel(tiny_llama(kv_heads=kv_heads))
    logprobs = policy.logprobs(pack(rows, torch.device("cpu"))).logprobs
    logprobs.sum().backward()
    return logprobs.detach(), {name: parameter.grad for name, parameter in policy.named_parameters()}


@pytest.mark.parametrize("rows", [APART, SHARED], ids=["apart", "shared"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(("dtype", "atol", "grad_rtol"), [("float32", 1e-3, 1e-2), ("bfloat16", 0.2, 0.2)])
def test_logprobs_and_gradients_are_those_of_the_cpu(rows, kv_heads, dtype, atol, grad_rtol):
    expected, expected_grads = on_cpu(rows, kv_heads=kv_heads)
    policy = PolicyModel(tiny_llama(kv_heads=kv_heads).to(CUDA), dtype=dtype)
    logprobs = policy.logprobs(pack(rows, CUDA)).logprobs
    logprobs.sum().backward()
    assert_close(logprobs.detach().cpu(), expected, atol=atol, rtol=0)
    for name, parameter in policy.named_parameters():
        gap = (parameter.grad.cpu() - expected_grads[name]).norm() / expected_grads[name].norm()
        assert gap < grad_rtol, name
