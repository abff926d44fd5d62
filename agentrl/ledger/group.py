"""Closing a group: from the rewards of its survivors to advantages, and what is dropped, counted.

A member that infrastructure took (rejected before it was scored) leaves the baseline; one that was scored stays in it, also when its tokens
are too old to train. Inside the group, agent runs with equal group keys are compared, one entry per agent run whatever number of paths it
has. The result is a function of the group alone, so judging it again after a resume gives the same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl.ledger.entry import ScoredRun
from agentrl.ledger.state import Group, Member

DropReason = Literal["equal_rewards", "few_survivors", "no_reward", "no_tokens"]
"""equal_rewards: nothing to compare. few_survivors: fewer than the objective needs. no_reward: masked by the env (None).
no_tokens: nothing that could be trained was sampled."""


class Comparison(Protocol):
    """How an objective judges rewards; `agentrl.objective.Advantage` is one."""

    @property
    def of(self) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        """[group] rewards to [group] advantages"""
        ...

    @property
    def survivors(self) -> int:
        """Fewer, and the comparison is dropped."""
        ...

    @property
    def compares(self) -> bool:
        """Equal rewards teach nothing and are dropped."""
        ...


@dataclass(frozen=True, slots=True)
class KeptRun:
    """An agent run to be trained."""

    run: ScoredRun
    advantage: float


@dataclass(frozen=True, slots=True)
class DroppedRun:
    """A trained agent run that teaches nothing, and why."""

    episode: str
    run: ScoredRun
    reason: DropReason


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a closed group gives. `kept` has only episodes that are scored and have at least one run to train."""

    kept: dict[str, tuple[KeptRun, ...]]
    """By episode."""
    dropped: tuple[DroppedRun, ...]

    def reason(self, episode: str) -> DropReason:
        """Why an episode that is not in `kept` is dropped: its first run's reason."""
        return next((drop.reason for drop in self.dropped if drop.episode == episode), "no_tokens")


def judge(group: Group, comparison: Comparison) -> Judgement:
    """The judgement of a closed group."""
    compared: dict[str, list[tuple[Member, ScoredRun]]] = {}
    dropped: list[DroppedRun] = []
    for _, member in sorted(group.members.items()):
        for run in member.runs:
            if not run.trained:
                continue
            if run.reward is None:
                dropped.append(DroppedRun(member.episode, run, "no_reward"))
            else:
                compared.setdefault(run.group, []).append((member, run))
    kept: dict[str, list[KeptRun]] = {}
    for entries in compared.values():
        if reason := _drop_reason([run for _, run in entries], comparison):
            dropped.extend(DroppedRun(member.episode, run, reason) for member, run in entries)
            continue
        advantages = comparison.of(np.array([run.reward for _, run in entries], np.float64))
        for (member, run), advantage in zip(entries, advantages, strict=True):
            if not run.versions:
                dropped.append(DroppedRun(member.episode, run, "no_tokens"))
            elif member.status == "scored":
                kept.setdefault(member.episode, []).append(KeptRun(run, float(advantage)))
    return Judgement({episode: tuple(runs) for episode, runs in kept.items()}, tuple(dropped))


def _drop_reason(runs: list[ScoredRun], comparison: Comparison) -> DropReason | None:
    if len(runs) < comparison.survivors:
        return "few_survivors"
    if comparison.compares and len({run.reward for run in runs}) == 1:
        return "equal_rewards"
    return None
