"""What the controller tells those who watch: metrics, the live view, supervision. Override what you need; the rest is ignored.

Events are facts with numbers, told once, in order, from the controller's own loop; an observer must not block.
"""

import msgspec


class BatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A batch went to the trainer. Tokens are trainable tokens of the kept agent runs."""

    number: int
    first_step: int
    last_step: int
    policy_version: int
    groups: int
    dropped_groups: int
    episodes: int
    """Fed, of all groups."""
    reward: float | None
    """Mean over the scored members of all its groups, dropped ones included."""
    trained_tokens: int
    masked_tokens: int
    """Over the staleness bound."""
    staleness_max: int
    """Of trained tokens, in versions."""
    staleness_mean: float


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer made an optimizer update."""

    step: int
    steps: int
    metrics: dict[str, float]


class EpisodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt ended: scored (`reason` empty), or rejected and why."""

    episode: str
    split: str
    task_id: str
    worker: str
    reward: float | None = None
    terminal: str = ""
    reason: str = ""
    detail: str = ""
    again: bool = False
    """The member was issued again."""
    turns: int = 0
    sampled_tokens: int = 0
    placements: dict[str, int] = {}
    """Turns by placement; keys that start with "forked" carry the reason."""
    untrainable: dict[str, int] = {}
    """Sampled tokens that were sealed as not trainable, by reason."""
    duration_s: float = 0.0


class DropEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A trained agent run that will teach nothing, told when its group closed or was consumed."""

    episode: str
    agent_run: str
    reason: str
    """equal_rewards, few_survivors, no_reward, no_tokens, stale"""
    reward: float | None
    sampled_tokens: int
    length_decile: int
    """0 (shortest) … 9 among the latest agent runs."""


class EvaluationEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out tasks were run."""

    evaluation: int
    step: int
    reward: float | None
    """Mean; None if no episode was scored."""
    stderr: float
    episodes: int
    failed: int
    """Left out of the mean: rejected, or without a reward."""
    versions: tuple[int, int]
    """Oldest and newest policy_version of its tokens."""


class UpdateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Weights moved, or failed to."""

    version: int
    engine: str
    outcome: str
    """served, skipped (a newer one won), refused (nothing changed), quarantined, lost"""
    detail: str = ""
    prepare_s: float = 0.0
    gap_s: float = 0.0
    """From asking for the pause to the end of the resume."""


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is in trouble. Supervision kills and restarts it; its episodes were leased again already."""

    worker: str
    what: str
    """frozen, lost"""
    detail: str = ""
    """The stack that holds its loop."""


class Observer:
    """Ignores everything."""

    def batch(self, event: BatchEvent) -> None: ...

    def step(self, event: StepEvent) -> None: ...

    def episode(self, event: EpisodeEvent) -> None: ...

    def drop(self, event: DropEvent) -> None: ...

    def evaluation(self, event: EvaluationEvent) -> None: ...

    def update(self, event: UpdateEvent) -> None: ...

    def worker(self, event: WorkerEvent) -> None: ...
