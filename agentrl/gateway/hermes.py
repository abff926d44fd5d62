"""`model.tool_format=hermes`: tools for chat templates that know none.

The schemas go into the system text, the model answers with JSON between `<tool_call>` words, results come back as user messages. It needs
nothing of a template but system, user and assistant, so any chat model can be trained on tools.
"""

from collections.abc import Sequence

import msgspec

from agentrl.episode import ChatMessage, ToolCall, ToolSpec

_HEAD = """\
You may call one or more functions to assist with the user query. Here are their signatures:
<tools>
"""
_FOOT = """
</tools>

For each function call, write a JSON object with its name and arguments within <tool_call> tags:
<tool_call>
{"name": <function name>, "arguments": <object of arguments>}
</tool_call>"""


def with_tools(messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[ChatMessage]:
    """The conversation with the schemas in its (first) system message."""
    if not tools:
        return list(messages)
    lines = [
        msgspec.json.encode({"name": tool.name, "description": tool.description, "parameters": tool.parameters}).decode() for tool in tools
    ]
    text = _HEAD + "\n".join(lines) + _FOOT
    first = messages[0] if messages else None
    if first is None or first.role not in ("system", "developer"):
        return [ChatMessage(role="system", content=text), *messages]
    told = first.content + "\n\n" + text if first.content else text
    return [ChatMessage(role="system", content=told), *messages[1:]]


def as_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Tool calls and results written as text; results in a row share one user message."""
    out: list[ChatMessage] = []
    joined = False
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.content}\n</tool_response>"
            if joined:
                result = f"{out.pop().content}\n{result}"
            out.append(ChatMessage(role="user", content=result))
        elif message.tool_calls:
            parts = [message.content] if message.content else []
            parts += [_call(call) for call in message.tool_calls]
            out.append(ChatMessage(role="assistant", content="\n".join(parts), reasoning=message.reasoning))
        else:
            out.append(message)
        joined = message.role == "tool"
    return out


def _call(call: ToolCall) -> str:
    name = msgspec.json.encode(call.name).decode()
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments}}}\n</tool_call>'
