"""How far generation may run ahead of training, in published versions.

Let a batch be made when `steps_made` steps were fed, and let W be the training groups that were issued and not consumed yet. If groups are
consumed in the order of issue, a group issued now waits for W // groups_per_step whole batches, that is until step

    s = steps_made + (W // groups_per_step) · minibatches

was made. Its tokens are sampled under the served version or a later one, and when it is consumed the served version is at most the one
that is published after step s. So

    ahead = (version that is published after step s) - (served version)

bounds the staleness that its tokens can reach, at the pace of one batch's publications per batch, whatever the latencies. A group that
others overtake may exceed it: then its over-bound tokens are masked, and it is evicted only when none is left to train.

- `window(k)` issues work while ahead ≤ k, and masks tokens older than k versions at consumption.
- `sync` is window(0): with a publication per batch, nothing of step n+1 is sampled before step n's weights are served, and nothing is ever
  masked, since exactly one batch's groups are out at a time. (If a publication covers several batches, they share one version and may
  be generated together: that is still staleness 0.)

Both consume the oldest closed groups first, which keeps masking to the overtaken.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from agentrl.ledger import Group
from agentrl.rollout.schedule import Schedule

PolicyName = Literal["sync", "window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the run stands, as policies see it."""

    schedule: Schedule
    unconsumed: int
    """Training groups issued and not consumed (W above)."""
    steps_made: int
    published_version: int
    served_version: int
    start_step: int = 0
    """Where this process of the run began, …"""
    start_version: int = 0
    """… and the version served then: publications are counted from here."""

    @property
    def ahead(self) -> int:
        """Versions by which a group issued now can be older than the served one when it is consumed in order."""
        batches = self.unconsumed // self.schedule.groups_per_step
        step = min(self.steps_made + batches * self.schedule.minibatches, self.schedule.steps)
        due = self.start_version + self.schedule.publications(after=self.start_step, through=step)
        return max(due, self.published_version) - self.served_version

    @property
    def needed(self) -> bool:
        """A group issued now will be consumed before the run ends."""
        return self.unconsumed < self.schedule.batches_left(self.steps_made) * self.schedule.groups_per_step


class Policy(Protocol):
    """When to issue work, what to consume first, and from which version on its tokens may be trained."""

    def admits(self, progress: Progress) -> bool:
        """Whether one more group may be issued."""
        ...

    def select(self, ready: Iterable[Group], count: int) -> list[Group]:
        """The closed groups that the next batch consumes."""
        ...

    def oldest_version(self, served_version: int) -> int:
        """Tokens of earlier versions are over the bound."""
        ...


@dataclass(frozen=True, slots=True)
class Window:
    """window(k); `sync` is k = 0. The module's docstring defines it."""

    versions: int

    def admits(self, progress: Progress) -> bool:
        return progress.needed and progress.ahead <= self.versions

    def select(self, ready: Iterable[Group], count: int) -> list[Group]:
        return sorted(ready, key=lambda group: group.number)[:count]

    def oldest_version(self, served_version: int) -> int:
        return max(0, served_version - self.versions)


def policy_of(name: PolicyName, window: int) -> Policy:
    """The policy of `[rollout]`."""
    return Window(0 if name == "sync" else window)
