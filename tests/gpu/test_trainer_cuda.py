"""The trainer's CUDA paths against the CPU's numbers."""

import pytest
import torch
from torch.testing import assert_close

from agentrl.train.model import PolicyModel
from agentrl.train.packing import pack
from tests.unit.train.models import ragged, tiny_llama

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
ROWS = [ragged(n, seed=n) for n in (70, 33, 32, 31, 5)]


def on_cpu(*, kv_heads: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    policy = PolicyModel(tiny_llama(kv_heads=kv_heads))
    logprobs = policy.logprobs(pack(ROWS, torch.device("cpu"))).logprobs
    logprobs.sum().backward()
    return logprobs.detach(), {name: parameter.grad for name, parameter in policy.named_parameters()}


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(("dtype", "atol", "grad_rtol"), [("float32", 1e-3, 1e-2), ("bfloat16", 0.2, 0.2)])
def test_logprobs_and_gradients_are_those_of_the_cpu(kv_heads, dtype, atol, grad_rtol):
    expected, expected_grads = on_cpu(kv_heads=kv_heads)
    policy = PolicyModel(tiny_llama(kv_heads=kv_heads).to(CUDA), dtype=dtype)
    logprobs = policy.logprobs(pack(ROWS, CUDA)).logprobs
    logprobs.sum().backward()
    assert_close(logprobs.detach().cpu(), expected, atol=atol, rtol=0)
    for name, parameter in policy.named_parameters():
        gap = (parameter.grad.cpu() - expected_grads[name]).norm() / expected_grads[name].norm()
        assert gap < grad_rtol, name
