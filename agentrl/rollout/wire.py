"""What workers and the controller say to each other. Msgpack over HTTP, the run's token as Bearer; nothing here names a local path.

POST /worker/lease      LeaseRequest → LeaseReply      (long poll: answers when there is work, or empty after wait_s)
POST /worker/heartbeat  Heartbeat → HeartbeatReply
POST /worker/done       EpisodeDone → {}
POST /worker/tasks      TaskPage → {}
POST /trainer/batch     {} → Batch | Stop              (long poll; 204 when none yet)
POST /trainer/step      StepReport → {}
POST /trainer/ready     WeightUpdate → {}
POST /trainer/checkpoint CheckpointReport → {}
"""

from typing import Any, Literal

import msgspec

from agentrl.episode import EpisodeKey, EpisodeRecord, ErrorRecord


class LeaseRequest(msgspec.Struct, frozen=True):
    worker: str
    capacity: int
    """Episodes that it can take more."""
    wait_s: float


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """The right and duty to run one episode until the deadline."""

    id: str
    episode: str
    key: EpisodeKey
    split: Literal["train", "eval"]
    task: dict[str, Any]
    """A `Task` as builtins."""
    group_seed: int
    """Equal for all members of a group: `task.rng`."""
    seed: int
    """`ep.rng`"""
    deadline_s: float
    """From now."""


class TaskRequest(msgspec.Struct, frozen=True):
    """Stream tasks[start : start + count] of a split's epoch."""

    id: str
    split: Literal["train", "eval"]
    epoch: int
    start: int
    count: int
    deadline_s: float


class LeaseReply(msgspec.Struct, frozen=True, omit_defaults=True):
    leases: tuple[Lease, ...] = ()
    tasks: tuple[TaskRequest, ...] = ()
    stop: bool = False
    """The run is over; the worker ends its env and exits."""


class LeaseBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    lease: str
    doing: str = ""
    """"reward", "tool calc", "turn 3", … for the watchdog and the live view."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Sent from a thread of its own, so that it speaks also while user code holds the loop."""

    worker: str
    leases: tuple[LeaseBeat, ...]
    loop_lag_s: float
    """Seconds since the event loop last turned."""
    stack: str = ""
    """What the loop's thread is doing, when the lag is long."""
    holder: str = ""
    """The lease whose code holds the loop, by that stack."""
    leaked: tuple[str, ...] = ()
    """Sync user code that outlived its deadline and still holds a thread ("tool calc"): only a new process gets rid of it."""


class HeartbeatReply(msgspec.Struct, frozen=True, omit_defaults=True):
    cancel: tuple[str, ...] = ()
    """Leases to stop: expired, or withdrawn."""


class EpisodeDone(msgspec.Struct, frozen=True):
    """Structure, rewards and ids of an episode that ended, well or not."""

    worker: str
    lease: str
    record: EpisodeRecord


class TaskPage(msgspec.Struct, frozen=True, omit_defaults=True):
    worker: str
    request: str
    tasks: tuple[dict[str, Any], ...] = ()
    end: bool = False
    """The split's epoch has no more."""
    error: ErrorRecord | None = None
