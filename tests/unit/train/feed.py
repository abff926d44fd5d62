"""Hand-made episodes, as the gateway would seal and the controller feed them."""

import io
from dataclasses import dataclass, field

import numpy as np

from agentrl.episode import EpisodeKey, EpisodeRecord, Parent, Sampling, Span, Turn, write_episode
from agentrl.ledger.feed import Batch, FeedEpisode, FeedRun, Minibatch
from tests.unit.train.models import VOCAB


def turn(
    name: str,
    run: str,
    *,
    prompt: int = 4,
    completion: int = 5,
    seed: int = 0,
    parent: tuple[str, int] | None = None,
    versions: tuple[tuple[int, int], ...] | None = None,
    mask: tuple[int, ...] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
    kv_oldest_version: int = 0,
) -> Turn:
    """`versions`: (policy_version, tokens) of each span, 0 throughout if not given. `mask`: completion tokens not to train."""
    rng = np.random.default_rng(seed)
    spans, start = [], 0
    for version, tokens in versions or ((0, completion),):
        spans.append(Span(version, start, start + tokens))
        start += tokens
    trained = np.ones(completion, bool)
    trained[list(mask)] = False
    return Turn(
        id=name,
        agent_run=run,
        parent=Parent(*parent) if parent else None,
        prompt_ids=rng.integers(0, VOCAB, prompt).astype(np.int32),
        completion_ids=rng.integers(0, VOCAB, completion).astype(np.int32),
        mask=trained,
        sampler_logprobs=(-4.1 + 0.3 * rng.standard_normal(completion)).astype(np.float32),
        spans=tuple(spans),
        kv_oldest_version=kv_oldest_version,
        sampling=Sampling(max_tokens=64, temperature=temperature, top_p=top_p),
        finish_reason="stop",
    )


@dataclass
class Blobs:
    """Sealed episodes by handle."""

    held: dict[str, bytes] = field(default_factory=dict)

    def open(self, handle: str) -> io.BytesIO:
        return io.BytesIO(self.held[handle])

    def seal(self, episode: str, turns: list[Turn], advantages: dict[str, float]) -> FeedEpisode:
        """`advantages` by agent run; the runs not in it are not fed."""
        file = io.BytesIO()
        key = EpisodeKey(epoch=0, task_id="t", member=0)
        write_episode(file, EpisodeRecord(id=episode, key=key, split="train", env="e", env_version="1", task={}), turns)
        self.held[f"blob-{episode}"] = file.getvalue()
        runs = tuple(FeedRun(agent_run=run, group="g", policy="policy", advantage=value) for run, value in advantages.items())
        return FeedEpisode(episode=episode, handle=f"blob-{episode}", runs=runs)


def one_batch(step: int, episodes: list[FeedEpisode], tokens: int, *, policy_version: int = 0, oldest_version: int = 0) -> Batch:
    """A batch of one minibatch."""
    return Batch(
        number=step,
        minibatches=(Minibatch(step=step, episodes=tuple(episodes), trained_tokens=tokens),),
        policy_version=policy_version,
        oldest_version=oldest_version,
        ledger_position=100 + step,
    )


def eight_episodes(blobs: Blobs, *, seed: int = 0) -> tuple[list[FeedEpisode], int]:
    """Two-turn episodes of different lengths, with advantages of both signs, and their trained tokens."""
    episodes, tokens = [], 0
    for i in range(8):
        run, a, b = f"run-{i}", 3 + i, 2 + 2 * i
        first = turn(f"a{i}", run, prompt=5, completion=a, seed=seed + i)
        second = turn(f"b{i}", run, prompt=3, completion=b, seed=seed + 50 + i, parent=(f"a{i}", 5 + a))
        episodes.append(blobs.seal(f"e{seed}-{i}", [first, second], {run: 0.75 if i % 4 == 0 else -0.25}))
        tokens += a + b
    return episodes, tokens
