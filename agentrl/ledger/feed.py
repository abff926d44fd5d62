"""What the controller hands to the trainer: handles and numbers, never tokens."""

import msgspec


class FeedRun(msgspec.Struct, frozen=True):
    """One agent run whose tokens are to be trained."""

    agent_run: str
    group: str
    policy: str
    advantage: float


class FeedEpisode(msgspec.Struct, frozen=True):
    """One sealed episode; its blob is read by the trainer."""

    episode: str
    handle: str
    runs: tuple[FeedRun, ...]


class Minibatch(msgspec.Struct, frozen=True):
    """What one optimizer update is made of."""

    step: int
    """The number of that update; the first one of a run is 1."""
    episodes: tuple[FeedEpisode, ...]
    trained_tokens: int
    """The denominator: trainable tokens of all runs above that are not over the staleness bound."""


class Batch(msgspec.Struct, frozen=True, tag=True):
    """`groups_per_step` closed groups, cut into minibatches."""

    number: int
    minibatches: tuple[Minibatch, ...]
    policy_version: int
    """The version served when the batch was made: staleness is counted from it."""
    oldest_version: int
    """Tokens of earlier versions are over the bound and masked."""
    ledger_position: int
    """The ledger's last entry when the batch was made; a checkpoint after this batch carries it."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """No more batches: the trainer writes its last checkpoint and ends."""

    reason: str


class StepReport(msgspec.Struct, frozen=True):
    """One optimizer update, done."""

    step: int
    metrics: dict[str, float]


class CheckpointReport(msgspec.Struct, frozen=True):
    """A checkpoint, complete on disk."""

    step: int
    path: str
