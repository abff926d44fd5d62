"""Chat messages as people write them (OpenAI-shaped dicts, plain text) into the one canonical form."""

from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.episode import ChatMessage, ToolCall
from agentrl.errors import EnvError


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def assistant(text: str = "", *, calls: Iterable[ToolCall] = ()) -> ChatMessage:
    return ChatMessage(role="assistant", content=text, tool_calls=tuple(calls))


def tool_result(call: ToolCall, text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text, tool_call_id=call.id, name=call.name)


def canonical(message: ChatMessage | Mapping[str, Any]) -> ChatMessage:
    """Raises EnvError for what is neither a ChatMessage nor an OpenAI-shaped mapping."""
    if isinstance(message, ChatMessage):
        return message
    try:
        return ChatMessage(
            role=message["role"],
            content=_text(message.get("content")),
            reasoning=message.get("reasoning", message.get("reasoning_content")),
            tool_calls=tuple(_call(call) for call in message.get("tool_calls") or ()),
            tool_call_id=message.get("tool_call_id"),
            name=message.get("name"),
        )
    except (KeyError, TypeError, AttributeError) as cause:
        raise EnvError(
            f"not a chat message: {message!r} ({cause!r}); it needs a role and content, as in {{'role': 'user', 'content': 'Hi'}}"
        ) from cause


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part["text"] for part in content)


def _call(call: ToolCall | Mapping[str, Any]) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    function = call.get("function", call)
    return ToolCall(id=call["id"], name=function["name"], arguments=function["arguments"])
