"""Chat messages in the one canonical form that every dialect is turned into, and that templates render.

Tool-call arguments stay the JSON text that was sampled: parsing and printing them anew would change the model's own words
(`{"a":1}` is not `{"a": 1}`) and with them the tokens.
"""

from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call asked for by the model. `id` was issued by the gateway and finds the turn again when history comes back."""

    id: str
    name: str
    arguments: str
    """JSON text, exactly as sampled; not necessarily valid."""


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    """Thinking text (`reasoning_content` on the wire), without the template's markers."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Set on role "tool": the call that this message answers."""
    name: str | None = None


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as the model sees it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments object."""
