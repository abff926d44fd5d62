"""The ground floor: what an episode is, from sampled tokens to the rows of the loss. Depends on nothing above it."""

from agentrl.episode.chat import ChatMessage, Role, ToolCall, ToolSpec
from agentrl.episode.graph import graph
from agentrl.episode.record import (
    SCHEMA,
    TRUNCATED,
    AgentRunRecord,
    EpisodeKey,
    EpisodeRecord,
    ErrorRecord,
    Message,
    Sealed,
    Terminal,
    TokenStats,
    ToolCallRecord,
)
from agentrl.episode.row import Row, row
from agentrl.episode.store import encode_record, encode_turn, read_record, read_turns, write_episode
from agentrl.episode.trie import Path, Segment, TokenTrie
from agentrl.episode.turn import FinishReason, Parent, Sampling, Span, Support, Turn, TurnKind

__all__ = [
    "SCHEMA",
    "TRUNCATED",
    "AgentRunRecord",
    "ChatMessage",
    "EpisodeKey",
    "EpisodeRecord",
    "ErrorRecord",
    "FinishReason",
    "Message",
    "Parent",
    "Path",
    "Role",
    "Row",
    "Sampling",
    "Sealed",
    "Segment",
    "Span",
    "Support",
    "Terminal",
    "TokenStats",
    "TokenTrie",
    "ToolCall",
    "ToolCallRecord",
    "ToolSpec",
    "Turn",
    "TurnKind",
    "encode_record",
    "encode_turn",
    "graph",
    "read_record",
    "read_turns",
    "row",
    "write_episode",
]
