"""What the journal says: one small struct for each thing that can happen to an episode, a batch or a version.

Entries name facts, never conclusions. That a group closed, what its advantages are and where the data cursor stands all follow from them,
so a replay cannot disagree with the run that wrote them.
"""

from typing import Literal

import msgspec

from agentrl.episode import EpisodeKey
from agentrl.ledger.feed import Batch

Split = Literal["train", "eval"]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag=True):
    """Base of all entries; the struct's name is its kind."""


class Issued(Entry, frozen=True):
    """An episode exists and waits for a worker. All members of a group are issued in one transaction."""

    episode: str
    key: EpisodeKey
    split: Split
    index: int
    """Of the task in its split's epoch; the data cursor follows from it."""
    size: int
    """Members of the episode's group."""


class Running(Entry, frozen=True):
    """A worker holds the lease."""

    episode: str
    worker: str


class Done(Entry, frozen=True):
    """The worker posted the episode's record; its turns are not sealed yet."""

    episode: str
    terminal: str


class ScoredRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ledger needs of one agent run: its reward, and how many of its tokens could be trained under each version."""

    agent_run: str
    group: str
    policy: str = "policy"
    trained: bool = True
    reward: float | None = None
    """None: masked."""
    sampled: int = 0
    versions: dict[int, int] = {}
    """Trainable tokens by policy_version."""


class Scored(Entry, frozen=True):
    """The episode is sealed: its blob can be read, its rewards stand."""

    episode: str
    handle: str
    runs: tuple[ScoredRun, ...]
    reward: float | None = None
    """Of the root, for tables and evaluations."""


class Rejected(Entry, frozen=True):
    """The episode will not be trained. `final=False`: the member is issued again, as its next attempt."""

    episode: str
    reason: str
    detail: str = ""
    final: bool = True
    fault: bool = False
    """Counts against the member's retries (a bystander's release does not)."""


class Refused(Entry, frozen=True):
    """A task that was streamed and not issued, such as a duplicate."""

    epoch: int
    index: int
    task_id: str
    reason: str


class EpochEnded(Entry, frozen=True):
    """The training split gave `tasks` tasks and no more; the next epoch begins."""

    epoch: int
    tasks: int


class BatchMade(Entry, frozen=True):
    """Closed groups went to the trainer."""

    batch: Batch
    groups: tuple[tuple[int, ...], ...]
    """Numbers of the groups in each minibatch, aligned with batch.minibatches."""
    dropped: tuple[int, ...]
    """Numbers of the groups that the batch consumed without a token to train."""


class Retired(Entry, frozen=True):
    """Dropped groups of steps that a resume took back, too old to be counted by another step."""

    groups: tuple[int, ...]


class Trained(Entry, frozen=True):
    """The optimizer made update `step`: the episodes of that minibatch are trained."""

    step: int


class Published(Entry, frozen=True):
    """The trainer (or the start of the run) brought out weights under this version."""

    version: int


class Served(Entry, frozen=True):
    """Every live engine samples from this version or a later one."""

    version: int


class Checkpointed(Entry, frozen=True):
    """A checkpoint is complete on disk."""

    step: int
    path: str


class Resumed(Entry, frozen=True):
    """The run goes on from the checkpoint of `step`: what was trained later is scored again."""

    step: int


class Evaluated(Entry, frozen=True):
    """An evaluation ended. Its episodes have split "eval" and `evaluation` as their epoch."""

    evaluation: int
    step: int
    reward: float | None
    stderr: float
    episodes: int
    failed: int


class Ended(Entry, frozen=True):
    """The controller ended in order; nothing is in flight."""

    reason: str


AnyEntry = (
    Issued
    | Running
    | Done
    | Scored
    | Rejected
    | Refused
    | EpochEnded
    | BatchMade
    | Retired
    | Trained
    | Published
    | Served
    | Checkpointed
    | Resumed
    | Evaluated
    | Ended
)
