"""How an agent run reaches its model: a protocol, so that the environment layer knows no socket.

A worker injects sessions of the gateway, `try` injects the gold script or a person; the tool loop cannot tell them apart.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from agentrl.env.limits import Bounds
from agentrl.env.sampling import SamplingOptions
from agentrl.env.task import Task
from agentrl.episode import ChatMessage, ToolSpec


class Reply(msgspec.Struct, frozen=True):
    """One turn: what the model said."""

    turn: str
    """The turn's id, as journalled by the gateway."""
    message: ChatMessage
    finish: Literal["stop", "length"] = "stop"
    """length: cut by tokens_per_turn, the session's tokens or the context."""
    completion_tokens: int = 0

    @property
    def text(self) -> str:
        return self.message.content


class SessionRequest(msgspec.Struct, frozen=True):
    """One agent run that wants a model."""

    episode: str
    agent_run: str
    agent: str
    model: str
    """"policy", or "openai/NAME": an outside model, never trained."""
    trained: bool
    task: Task
    sampling: SamplingOptions
    bounds: Bounds


class Session(Protocol):
    """An open line to a model, for one agent run."""

    @property
    def base_url(self) -> str:
        """Ends in /v1; empty when the session is not reachable over HTTP."""
        ...

    @property
    def secret(self) -> str:
        """The API key that goes with base_url."""
        ...

    async def call(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Reply:
        """One turn on the whole conversation so far. Raises LimitReached("context" | "tokens"), GatewayError."""
        ...

    async def close(self) -> None: ...


class OpenSession(Protocol):
    """Opens sessions; raises GatewayError."""

    async def __call__(self, request: SessionRequest) -> Session: ...
