"""A call and what it has said so far, apart from the connection that asked for it.

Connections break and clients retry; the call goes on in a task of its own, and whoever listens reads from the beginning. So a retry joins
the call that it repeats, or is given its result again, and nothing is sampled twice.
"""

from dataclasses import dataclass

import anyio

from agentrl.episode import ChatMessage, ToolSpec
from agentrl.gateway.history import Echo
from agentrl.gateway.parse import Delta
from agentrl.gateway.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Order:
    """What a request asks for, in no dialect."""

    echoes: list[Echo]
    tools: tuple[ToolSpec, ...]
    tools_key: bytes
    use_tools: bool = True
    """False: calls in the reply stay text (tool_choice none)."""
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call that came to its end."""

    reply: ChatMessage
    finish: str
    """stop, length or tool_calls"""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Call:
    """One model call. `turn` is the id of the turn that it makes."""

    __slots__ = ("_changed", "created", "delivered", "deltas", "listeners", "outcome", "refusal", "scope", "turn")

    def __init__(self, turn: str, created: float) -> None:
        self.turn = turn
        self.created = created
        self.deltas: list[Delta] = []
        self.outcome: Outcome | None = None
        self.refusal: Refusal | None = None
        self.listeners = 0
        self.delivered: bool | None = None
        """None until somebody was answered, or provably was not."""
        self.scope = anyio.CancelScope()
        self._changed: anyio.Event | None = None

    @property
    def ended(self) -> bool:
        return self.outcome is not None or self.refusal is not None

    def say(self, deltas: list[Delta]) -> None:
        if deltas:
            self.deltas += deltas
            self._wake()

    def end(self, outcome: Outcome | Refusal) -> None:
        if isinstance(outcome, Refusal):
            self.refusal = outcome
        else:
            self.outcome = outcome
        self._wake()

    async def ended_or_said(self, heard: int) -> None:
        """Return when there is more than `heard` deltas, or the end."""
        while not self.ended and len(self.deltas) <= heard:
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()

    async def end_reached(self) -> None:
        while not self.ended:
            await self.ended_or_said(len(self.deltas))

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
