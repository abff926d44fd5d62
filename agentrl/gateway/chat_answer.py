"""The Chat Completions dialect's answers: whole, streamed, errors, and what it tells of models."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.episode import ChatMessage, ToolCall
from agentrl.gateway.call import Call, Outcome
from agentrl.gateway.parse import Delta
from agentrl.gateway.refusal import Refusal

_json = msgspec.json.Encoder()


def completion(call: Call, outcome: Outcome, model: str) -> bytes:
    """The answer to a call that was not streamed."""
    return _json.encode(
        {
            "id": f"chatcmpl-{call.turn}",
            "object": "chat.completion",
            "created": int(call.created),
            "model": model,
            "choices": [{"index": 0, "message": _reply(outcome.reply), "finish_reason": outcome.finish, "logprobs": None}],
            "usage": usage(outcome),
        }
    )


def _reply(reply: ChatMessage) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or (None if reply.tool_calls else "")}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_call(call) for call in reply.tool_calls]
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage(outcome: Outcome) -> dict[str, Any]:
    return {
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "total_tokens": outcome.prompt_tokens + outcome.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": outcome.cached_tokens},
    }


class ChunkWriter:
    """A streamed call's events."""

    def __init__(self, call: Call, model: str, *, include_usage: bool) -> None:
        self._head = {"id": f"chatcmpl-{call.turn}", "object": "chat.completion.chunk", "created": int(call.created), "model": model}
        self._include_usage = include_usage
        self._calls = 0

    def first(self) -> bytes:
        return self._choice({"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> bytes:
        if delta.call is not None:
            self._calls += 1
            return self._choice({"tool_calls": [{"index": self._calls - 1, **_call(delta.call)}]})
        return self._choice({"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content})

    def last(self, outcome: Outcome) -> bytes:
        end = self._choice({}, outcome.finish)
        if self._include_usage:
            end += _event({**self._head, "choices": [], "usage": usage(outcome)})
        return end + b"data: [DONE]\n\n"

    def _choice(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        event = {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}
        return _event({**event, "usage": None} if self._include_usage else event)


def _event(value: Any) -> bytes:
    return b"data: " + _json.encode(value) + b"\n\n"


def error(refusal: Refusal) -> bytes:
    kind = "server_error" if refusal.status >= 500 else "authentication_error" if refusal.status == 401 else "invalid_request_error"
    return _json.encode({"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}})


def models(context_length: int | None) -> dict[str, Any]:
    return {"object": "list", "data": [model("policy", context_length)]}


def model(name: str, context_length: int | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "agentrl",
        "context_length": context_length,
        "max_model_len": context_length,
    }
