"""What every test of the gateway may check of the turns that it sealed: the four invariants of the training data."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import numpy as np

from agentrl.engine.scripted import scripted_logprob
from agentrl.episode import TokenTrie, Turn, row
from agentrl.testing.gateway import ScriptedPolicy


def check_books(policy: ScriptedPolicy, turns: Sequence[Turn]) -> None:
    """Against what the engine saw (its last prompts) and sampled."""
    trie = TokenTrie(turns)
    seen = [np.asarray(prompt, np.int32) for prompt in policy.engine.prompts]
    owned: dict[str, int] = {}
    for path in trie.paths():
        for piece in path.segments:
            owned[piece.turn.id] = owned.get(piece.turn.id, 0) + (piece.stop - piece.start if piece.owned else 0)
        arrays = row(path, agent_run="r", group="g", policy="policy")
        trained = arrays.trained
        assert (arrays.policy_version[trained] >= 0).all()
        assert np.isfinite(arrays.sampler_logprobs[trained]).all()
        assert (arrays.temperature[trained] > 0).all()
    for turn in turns:
        assert owned[turn.id] == turn.own_len, "each token has one owner"
        whole = trie.tokens(turn.id)
        prompt = whole[: len(whole) - len(turn.completion_ids)]
        assert any(np.array_equal(prompt, given) for given in seen), "prefix + prompt is what the engine saw"
        expected = [scripted_logprob(i, token) for i, token in enumerate(turn.completion_ids.tolist())]
        assert turn.sampler_logprobs.tolist() == expected, "completion and logprobs are what the engine sampled"
    stored = sum(turn.own_len for turn in turns)
    assert stored == sum(sum(s.stop - s.start for s in path.segments if s.owned) for path in trie.paths())


def texts(policy: ScriptedPolicy, turns: Sequence[Turn]) -> list[str]:
    """Each turn's whole sequence, decoded."""
    trie = TokenTrie(turns)
    return [policy.tokenizer.decode(trie.tokens(turn.id).tolist()) for turn in turns]


def labels(turns: Sequence[Turn]) -> list[str]:
    return [turn.placement for turn in turns]


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for it, with a bound."""
    with anyio.fail_after(30):
        while not await condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)


async def sampled(policy: ScriptedPolicy, count: int) -> None:
    """Wait until the engine has sampled that many tokens."""

    async def enough() -> bool:
        return (await policy.engine.status()).sampled_tokens >= count

    await eventually(enough)
