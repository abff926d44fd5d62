"""What is counted of an episode's tokens when it is sealed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

import numpy as np

from agentrl.episode import TokenStats, Turn
from agentrl.gateway.session import OpenSession


def without_undelivered(session: OpenSession) -> Iterator[Turn]:
    """The session's turns; what never reached the scaffold and was not gone on from is masked: it had no part in the reward."""
    trie = session.placer.trie
    # A turn that shares less than the whole of another (its prompt, for a new try at the same point) does not go on from it.
    continued = {at.turn for at in (turn.parent for turn in trie) if at is not None and at.prefix_len == trie.full_len(at.turn)}
    for turn in trie:
        yield _masked(turn) if turn.id in session.undelivered and turn.id not in continued else turn


def _masked(turn: Turn) -> Turn:
    values = {field.name: getattr(turn, field.name) for field in fields(turn) if field.init}
    return Turn(**{**values, "mask": np.zeros(len(turn.completion_ids), bool)})


def token_stats(turns: Iterable[Turn], sessions: Sequence[OpenSession]) -> dict[str, TokenStats]:
    """By agent run."""
    undelivered = {turn for session in sessions for turn in session.undelivered}
    untrained = {session.spec.agent_run for session in sessions if not session.spec.trained}
    runs: dict[str, list[Turn]] = {session.spec.agent_run: [] for session in sessions}
    for turn in turns:
        runs.setdefault(turn.agent_run, []).append(turn)
    return {run: _stats(of_run, undelivered, untrained) for run, of_run in runs.items()}


def _stats(turns: list[Turn], undelivered: set[str], untrained: set[str]) -> TokenStats:
    versions: Counter[int] = Counter()
    untrainable: Counter[str] = Counter()
    for turn in turns:
        values, counts = np.unique(turn.versions[turn.mask], return_counts=True)
        versions.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        untrainable.update(_reasons(turn, undelivered, untrained))
    return TokenStats(
        turns=len(turns),
        sampled=sum(len(turn.completion_ids) for turn in turns),
        versions=dict(versions),
        untrainable=dict(untrainable),
        placements=dict(Counter(turn.placement for turn in turns)),
    )


def _reasons(turn: Turn, undelivered: set[str], untrained: set[str]) -> dict[str, int]:
    """Why the turn's tokens with mask False are not trained; one reason a token."""
    masked = ~turn.mask
    count = int(masked.sum())
    if not count:
        return {}
    if turn.sampling.temperature == 0:
        return {"greedy": count}
    if turn.finish_reason == "abort":
        return {"abort": count}
    if turn.id in undelivered and not turn.mask.any():
        return {"undelivered": count}
    if turn.agent_run in untrained:
        return {"untrained": count}
    no_version = int((masked & (turn.versions < 0)).sum())
    return {reason: number for reason, number in (("no_version", no_version), ("stop", count - no_version)) if number}
