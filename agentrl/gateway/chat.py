"""The Chat Completions dialect's requests, read into orders.

A request's messages are left as raw bytes and looked up in the session's cache, so a long history costs a look-up a message and is parsed
once. Fields that are not known here are ignored, as every server of this dialect does; what would change the meaning of the answer and
cannot be had is refused with a message that says so.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from agentrl.episode import ChatMessage, ToolCall, ToolSpec
from agentrl.gateway.call import Order
from agentrl.gateway.control import SessionSpec
from agentrl.gateway.history import Echo, echo
from agentrl.gateway.refusal import invalid


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Request(msgspec.Struct):
    messages: list[msgspec.Raw]
    model: str = ""
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    response_format: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    refusal: str = ""


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = ""


class _CallEcho(msgspec.Struct):
    function: _Function
    id: str = ""


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallEcho] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _FunctionSpec(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    type: str = "function"
    function: _FunctionSpec | None = None


_request_decoder = msgspec.json.Decoder(_Request)
_message_decoder = msgspec.json.Decoder(_Message)
_tools_decoder = msgspec.json.Decoder(list[_Tool] | None)
_json = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="deterministic")

Tools = tuple[tuple[ToolSpec, ...], bytes]
"""The tools and their key."""
NO_TOOLS: Tools = ((), b"")


class ChatRequest:
    """A request, read as far as it needs to be."""

    def __init__(self, body: bytes) -> None:
        """Raises Refusal."""
        try:
            self._request = _request_decoder.decode(body)
        except msgspec.ValidationError as cause:
            raise invalid(f"the request is not a chat completion request: {cause}", code="invalid_type") from cause
        except (msgspec.DecodeError, UnicodeError, RecursionError) as cause:
            raise invalid(f"the body is not valid JSON: {cause}", code="invalid_json") from cause
        if not self._request.messages:
            raise invalid("messages is empty; send at least one", param="messages", code="empty_array")

    @property
    def stream(self) -> bool:
        return bool(self._request.stream)

    @property
    def include_usage(self) -> bool:
        options = self._request.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def model(self) -> str:
        return self._request.model or "policy"

    def order(self, known: dict[bytes, Echo], tools: "dict[bytes, Tools]") -> Order:
        """With messages and tools looked up in (and added to) the caches. Raises Refusal."""
        request = self._request
        self._refuse_what_cannot_be_had()
        specs, tools_key = self._tools(tools)
        limits = [limit for limit in (request.max_tokens, request.max_completion_tokens) if limit is not None]
        if any(limit < 1 for limit in limits):
            raise invalid(f"max_tokens={min(limits)} must be at least 1", param="max_tokens")
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        return Order(
            echoes=self._echoes(known),
            tools=specs,
            tools_key=tools_key,
            use_tools=request.tool_choice != "none",
            max_tokens=min(limits, default=None),
            stops=tuple(stop for stop in stops if stop),
            stream=self.stream,
        )

    def _refuse_what_cannot_be_had(self) -> None:
        request = self._request
        if request.n is not None and request.n != 1:
            raise invalid(f"n={request.n}: one completion a call; make {request.n} calls instead", param="n")
        if request.tool_choice not in (None, "auto", "none"):
            raise invalid(
                f"tool_choice={_json.encode(request.tool_choice).decode()} needs constrained decoding, which this engine does not have; "
                'use "auto" or "none"',
                param="tool_choice",
                code="unsupported_value",
            )
        if request.response_format is not None and request.response_format.get("type", "text") != "text":
            raise invalid(
                "response_format needs constrained decoding, which this engine does not have; ask for the format in the prompt",
                param="response_format",
                code="unsupported_value",
            )

    def _echoes(self, known: dict[bytes, Echo]) -> list[Echo]:
        echoes = []
        for index, raw in enumerate(self._request.messages):
            data = bytes(raw)
            found = known.get(data)
            if found is None:
                found = known[data] = _read_message(data, index)
            echoes.append(found)
        return echoes

    def _tools(self, cache: "dict[bytes, Tools]") -> Tools:
        data = bytes(self._request.tools)
        if not data:
            return NO_TOOLS
        found = cache.get(data)
        if found is None:
            try:
                asked = _tools_decoder.decode(data) or ()
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as cause:
                raise invalid(f"tools: {cause}", param="tools", code="invalid_type") from cause
            specs = tuple(
                ToolSpec(tool.function.name, tool.function.description or "", tool.function.parameters or {})
                for tool in asked
                if tool.type == "function" and tool.function is not None
            )
            key = blake2b(_canonical.encode(specs), digest_size=16).digest() if specs else b""
            if len(cache) >= 256:
                cache.clear()
            found = cache[data] = (specs, key)
        return found

    def wishes(self, spec: SessionSpec) -> Iterable[str]:
        """Names of sampling parameters that were asked for and are not what the run samples with."""
        request = self._request
        for name, ours in (("temperature", spec.temperature), ("top_p", spec.top_p), ("top_k", spec.top_k), ("min_p", spec.min_p)):
            asked = getattr(request, name)
            if asked is not None and asked != ours:
                yield name
        if request.seed is not None:
            yield "seed"
        if request.repetition_penalty not in (None, 1.0):
            yield "repetition_penalty"
        for name in ("presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "reasoning_effort"):
            if getattr(request, name):
                yield name
        if request.parallel_tool_calls is False:
            yield "parallel_tool_calls"


def _read_message(data: bytes, index: int) -> Echo:
    try:
        return echo(_canonical_message(_message_decoder.decode(data), index))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as cause:
        raise invalid(f"messages[{index}]: {cause}", param=f"messages[{index}]", code="invalid_type") from cause


def _canonical_message(message: _Message, index: int) -> ChatMessage:
    return ChatMessage(
        role=message.role,
        content=_text(message.content, index),
        reasoning=(message.reasoning_content if message.reasoning_content is not None else message.reasoning) or None,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=_arguments(call.function.arguments))
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _text(content: str | list[_Part] | None, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("text", "refusal", "input_text", "output_text"):
            raise invalid(f"messages[{index}]: this policy reads text only, not {part.type!r}", param=f"messages[{index}].content")
    return "".join(part.text or part.refusal for part in content)


def _arguments(value: str | dict[str, Any] | None) -> str:
    return value if isinstance(value, str) else _json.encode(value or {}).decode()
