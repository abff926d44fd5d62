"""The chunked head against plain log_softmax, with gradients."""

import pytest
import torch
from torch.testing import assert_close

from agentrl.train import head
from agentrl.train.head import logprobs_of


def case(bias: bool):
    torch.manual_seed(1)
    hidden, weight = torch.randn(23, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    offset = torch.randn(40, requires_grad=True) if bias else None
    targets, temperature = torch.randint(0, 40, (23,)), torch.rand(23) + 0.5
    return hidden, weight, offset, targets, temperature


def plain(hidden, weight, bias, targets, temperature):
    every = (torch.nn.functional.linear(hidden, weight, bias) / temperature[:, None]).log_softmax(-1)
    return every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 128])
def test_equals_log_softmax_with_gradients_at_each_token_s_temperature(bias, rows, monkeypatch):
    monkeypatch.setitem(head.CHUNK_LOGITS, "cpu", 1)
    monkeypatch.setattr(head, "LEAST_ROWS", rows)
    ours, theirs, upstream = case(bias), case(bias), torch.randn(23)
    got, (logprobs, entropy) = logprobs_of(*ours), plain(*theirs)
    assert_close(got.logprobs, logprobs)
    assert_close(got.entropy, entropy)
    (got.logprobs * upstream).sum().backward()
    (logprobs * upstream).sum().backward()
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        if mine is not None:
            assert_close(mine.grad, other.grad)


def test_a_uniform_distribution_by_hand():
    got = logprobs_of(torch.ones(1, 2), torch.zeros(4, 2), None, torch.tensor([3]), torch.tensor([0.7]))
    assert got.logprobs.item() == pytest.approx(-1.386294)
    assert got.entropy.item() == pytest.approx(1.386294)


def test_half_precision_is_summed_in_fp32():
    hidden, weight, _, targets, temperature = case(False)
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    expected, _ = plain(hidden.double(), weight.double(), None, targets, temperature.double())
    assert_close(logprobs_of(hidden, weight, None, targets, temperature).logprobs, expected.float(), atol=1e-5, rtol=0)


def test_no_tokens_give_no_numbers():
    hidden, weight, _, targets, temperature = case(False)
    assert logprobs_of(hidden[:0], weight, None, targets[:0], temperature[:0]).logprobs.shape == (0,)
