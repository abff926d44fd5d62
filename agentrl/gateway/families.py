"""Models whose ways the `renderers` package knows by name: it renders, extends and parses for them.

Its bridge is hand-written for each family (how thinking is dropped between user turns, what closes a cut turn) and returns nothing where it
cannot keep what was sampled; then the prompt is rendered fresh. The package is imported only for names that look like a hub's, since it
takes a second.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.episode import ChatMessage, FinishReason, ToolCall, ToolSpec
from agentrl.gateway.format import HERMES, THINK, ReplyFormat
from agentrl.gateway.parse import Delta, Parser, ReplyParser
from agentrl.gateway.render import Renderer, Sampled
from agentrl.gateway.stops import first_stop
from agentrl.gateway.template import TemplateRefusal
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.gateway.wire import wire_messages, wire_tools

_WRITE_HERMES = {"qwen3", "qwen3-vl"}
"""Families that our own parser reads, piece by piece; the package reads whole replies only."""
_log = logging.getLogger(__name__)


def family_renderer(name: str, tokenizer: Tokenizer, kwargs: Mapping[str, Any]) -> Renderer | None:
    """The renderer of the model called `name`; None if the package does not know it."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    from renderers.base import MODEL_RENDERER_MAP, create_renderer

    family = MODEL_RENDERER_MAP.get(name)
    if family is None:
        return None
    try:
        made = create_renderer(_Adapter(tokenizer, name), chat_template_kwargs=dict(kwargs) or None)
    except Exception as cause:
        _log.warning("the renderer for %s cannot be used with this tokenizer (%s); its chat template is used instead", name, cause)
        return None
    return FamilyRenderer(made, family, tokenizer, f"{name} {sorted(kwargs.items())}")


class FamilyRenderer:
    """One of the package's renderers behind our protocol."""

    needs_prefix = True
    tools_refusal: str | None = None

    def __init__(self, renderer: Any, family: str, tokenizer: Tokenizer, settings: str) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._format = ReplyFormat(reasoning=THINK, calls=HERMES) if family in _WRITE_HERMES else None
        self.stop_token_ids = tuple(renderer.get_stop_token_ids())
        self.digest = hashlib.sha256(f"{tokenizer.digest}\0{family}\0{settings}".encode()).hexdigest()[:16]
        if not getattr(renderer, "supports_tools", True):
            self.tools_refusal = f"{family} models know no tools; set model.tool_format=hermes, which writes them into the system text"

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int]:
        wire = wire_messages(messages, self._tokenizer)
        try:
            ids = self._renderer.render_ids(wire, tools=self._tools(tools), add_generation_prompt=True)
        except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as cause:
            raise TemplateRefusal(f"these messages cannot be rendered for the model: {cause}") from cause
        return list(ids)

    def extend(self, after: Sampled, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int] | None:
        wire = wire_messages(messages, self._tokenizer)
        before = [*after.prefix_ids, *after.completion_ids]
        bridged = self._renderer.bridge_to_next_turn(list(after.prefix_ids), list(after.completion_ids), wire, tools=self._tools(tools))
        if bridged is None or list(bridged.token_ids[: len(before)]) != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def _tools(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        return wire_tools(tools, self._tokenizer) or None

    def parser(self, *, turn: str, tools: bool, stops: Sequence[str]) -> Parser:
        ends = frozenset(self.stop_token_ids)
        if self._format is not None:
            return ReplyParser(self._tokenizer, self._format, turn=turn, tools=tools, stops=stops, end_ids=ends)
        return _WholeParser(self._renderer, self._tokenizer, turn=turn, tools=tools, stops=stops)


class _WholeParser:
    """Says nothing until the reply is whole."""

    def __init__(self, renderer: Any, tokenizer: Tokenizer, *, turn: str, tools: bool, stops: Sequence[str]) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._turn = turn
        self._tools = tools
        self._stops = stops
        self._ids: list[int] = []
        self._reply = ChatMessage(role="assistant")
        self.malformed = 0
        self.stopped = False

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        self._ids += ids
        if self._stops:
            self.stopped = first_stop(self._tokenizer.decode(self._ids), self._stops) is not None
        return []

    def finish(self, reason: FinishReason) -> list[Delta]:
        parsed = self._renderer.parse_response(self._ids)
        good = [call for call in parsed.tool_calls if call.status == "ok" and call.name]
        self.malformed = len(parsed.tool_calls) - len(good)
        content = self._trimmed(parsed.content)
        if not self._tools or self.malformed:
            content += "".join(call.raw for call in parsed.tool_calls if not self._tools or call not in good)
        calls = [_call(call, f"call_{self._turn}_{k}") for k, call in enumerate(good)] if self._tools and not self.stopped else []
        self._reply = ChatMessage(role="assistant", content=content, reasoning=parsed.reasoning_content or None, tool_calls=tuple(calls))
        deltas = [Delta(reasoning=self._reply.reasoning)] if self._reply.reasoning else []
        deltas += [Delta(content=content)] if content else []
        return deltas + [Delta(call=call) for call in calls]

    def _trimmed(self, content: str) -> str:
        stop = first_stop(content, self._stops)
        return content if stop is None else content[: stop.start]

    def reply(self) -> ChatMessage:
        return self._reply


def _call(parsed: Any, call_id: str) -> ToolCall:
    arguments = parsed.arguments if isinstance(parsed.arguments, str) else json.dumps(parsed.arguments or {}, ensure_ascii=False)
    return ToolCall(id=call_id, name=parsed.name, arguments=arguments)


class _Adapter:
    """Our tokenizer as the package wants it. Guarded text stays plain through it."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = name
        self.unk_token_id: int | None = None
        self.eos_token_id: int | None = None

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Any, *args: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.fast.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.fast.token_to_id(tokens)
        return [self._tokenizer.fast.token_to_id(token) for token in tokens]
