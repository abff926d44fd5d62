"""Canonical messages as chat templates read them, with special-token text in them kept plain.

What agents write is guarded by role: nobody but the model may write markup, and even an assistant message that did not come from the model
(an example in the prompt) may not open or close a turn.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from agentrl.episode import ChatMessage, ToolSpec
from agentrl.gateway.template import WireMessage
from agentrl.gateway.tokenizer import Tokenizer


def wire_messages(messages: Iterable[ChatMessage], tokenizer: Tokenizer) -> list[WireMessage]:
    return [_wire(message, tokenizer) for message in messages]


def wire_tools(tools: Sequence[ToolSpec], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    return [{"type": "function", "function": _every_text(function, tokenizer.guard)} for function in functions]


def _wire(message: ChatMessage, tokenizer: Tokenizer) -> WireMessage:
    assistant = message.role == "assistant"
    out: WireMessage = {
        "role": "system" if message.role == "developer" else message.role,
        "content": tokenizer.guard(message.content, only_special=assistant),
    }
    if message.reasoning is not None:
        out["reasoning_content"] = tokenizer.guard(message.reasoning)
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": tokenizer.guard(call.name), "arguments": _every_text(arguments(call.arguments), tokenizer.guard)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = tokenizer.guard(message.name)
    return out


def arguments(text: str) -> Any:
    """The arguments as the object that templates expect; the text itself if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _every_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _every_text(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_every_text(inner, change) for inner in value]
    return value
