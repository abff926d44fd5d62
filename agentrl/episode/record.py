"""What is known of an episode once it ended: its tree of agent runs, its tool calls and messages, its rewards and errors.

The record is structure only and is posted by workers, who never see a token; the tokens are the turns, written by the gateway. Sealing an
episode joins the two into one blob (`store.py`).
"""

from typing import Any, Literal

import msgspec

SCHEMA = 1
"""Version of every stored schema in this package; readers refuse a newer one."""

Terminal = Literal[
    "finished",  # the agent stopped by itself
    "turns",  # Limits.turns
    "tokens",  # Limits.tokens
    "length",  # a turn was cut by tokens_per_turn or the context
    "context",  # no room for another turn
    "time",  # Limits.run_s or the lease's deadline
    "crash",  # the agent's own action ended it (counts as the policy's failure)
    "error",  # the environment or the infrastructure failed (leaves the baseline)
    "cancelled",  # stopped from outside
]
TRUNCATED: frozenset[str] = frozenset({"turns", "tokens", "length", "context", "time"})
"""Terminal reasons that `on_truncate` governs."""


class EpisodeKey(msgspec.Struct, frozen=True, order=True):
    """What makes an episode unique in a run's ledger."""

    epoch: int
    task_id: str
    member: int
    """0 … group_size - 1"""
    attempt: int = 0
    """Counts re-issues of the same member."""


class ErrorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failure as data. `where` names the hook or call ("reward", "tool calc", "gateway")."""

    where: str
    kind: str
    """Name of the exception's class."""
    message: str
    traceback: str = ""


class ToolCallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One executed tool call."""

    id: str
    agent_run: str
    turn: str
    """The turn that asked for it."""
    name: str
    arguments: str
    result: str = ""
    error: str = ""
    """Why the call failed, as told to the model; empty if it did not."""
    started_at: float = 0.0
    ended_at: float = 0.0


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """An edge from one agent run to another: what `source` said or asked for became part of `target`'s task."""

    source: str
    target: str
    text: str = ""


class AgentRunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A child episode: one agent's part, with its own session, token trie and reward."""

    id: str
    agent: str
    task_id: str
    group: str
    """Agent runs with equal group keys have their rewards compared."""
    policy: str = "policy"
    trained: bool = True
    source: str | None = None
    terminal: Terminal = "finished"
    reward: float | None = None
    """None: masked, and counted as such."""
    rewards: dict[str, float] = {}
    """By component, before weights."""
    metrics: dict[str, float] = {}
    turns: int = 0


class TokenStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the gateway counted of one agent run's tokens when it sealed the episode."""

    turns: int = 0
    sampled: int = 0
    versions: dict[int, int] = {}
    """Trainable tokens (mask True; each counted once, whatever number of paths share it) by policy_version."""
    untrainable: dict[str, int] = {}
    """Sampled tokens with mask False, by reason ("stop", "no_version", "greedy")."""
    placements: dict[str, int] = {}
    """Turns by `Turn.placement`; keys that start with "forked" carry the reason."""


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to sealing an episode: where its blob lies and what is in it."""

    episode: str
    handle: str
    """Names the blob within the run's store; opaque elsewhere."""
    nbytes: int = 0
    runs: dict[str, TokenStats] = {}
    """By agent run id."""


class EpisodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The root: one run of one task."""

    id: str
    key: EpisodeKey
    split: Literal["train", "eval"]
    env: str
    env_version: str
    task: dict[str, Any]
    agent_runs: tuple[AgentRunRecord, ...] = ()
    tool_calls: tuple[ToolCallRecord, ...] = ()
    messages: tuple[Message, ...] = ()
    reward: float | None = None
    """Of the main agent run, for tables."""
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    terminal: Terminal = "finished"
    errors: tuple[ErrorRecord, ...] = ()
    scaffold: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    schema: int = SCHEMA
