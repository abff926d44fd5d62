"""From a conversation to prompt ids: rendered whole for a fresh start, extended for everything after it.

What was sampled is never rendered again, because templates do not print it back as it was: they strip, re-space arguments, drop thinking.
An extension is only what the template puts after an assistant's message. It is found by rendering a short conversation in which a
placeholder stands for that message; `proof.py` establishes at start-up that its surroundings do not matter.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.episode import ChatMessage, FinishReason, ToolCall, ToolSpec
from agentrl.gateway import hermes
from agentrl.gateway.format import ReplyFormat, format_of
from agentrl.gateway.parse import Parser, ReplyParser
from agentrl.gateway.roles import Roles
from agentrl.gateway.template import Template, TemplateRefusal
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.gateway.wire import wire_messages, wire_tools

PLACEHOLDER = "zqplaceholderqz"
"""Stands for what was sampled."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The end of a path: what the extension is put after."""

    completion_ids: Sequence[int]
    reply: ChatMessage
    finish: FinishReason
    prefix_ids: Sequence[int] = ()
    """Everything before the completion; only bridges of known families read it."""


class Renderer(Protocol):
    """A model's way of writing conversations."""

    digest: str
    """Of tokenizer, template and settings."""
    stop_token_ids: tuple[int, ...]
    """What ends a turn."""
    tools_refusal: str | None
    """Why requests with tools are refused; None if they are not."""
    needs_prefix: bool
    """`extend` reads Sampled.prefix_ids."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int]:
        """Prompt ids of a whole conversation. Raises TemplateRefusal."""
        ...

    def extend(self, after: Sampled, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int] | None:
        """Prompt ids to put after what was sampled; None if no extension is proven."""
        ...

    def parser(self, *, turn: str, tools: bool, stops: Sequence[str]) -> Parser: ...


class TemplateRenderer:
    """Any model with a chat template."""

    needs_prefix = False

    def __init__(self, tokenizer: Tokenizer, template: Template, *, tool_format: str, eos_token_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._hermes = tool_format == "hermes"
        self.format: ReplyFormat = format_of(template, hermes=self._hermes)
        self._roles = Roles.of(template)
        self.stop_token_ids = tuple(dict.fromkeys([*self._closing_ids(), *eos_token_ids]))
        self._stop_texts = [tokenizer.decode([token]) for token in self.stop_token_ids]
        self.digest = hashlib.sha256(f"{tokenizer.digest}\0{template.source}\0{tool_format}".encode()).hexdigest()[:16]
        self.tools_refusal: str | None = None
        self.extends = True
        """Set by the proof."""

    def _closing_ids(self) -> list[int]:
        """The special token that the template puts after an assistant's message."""
        text = self._template.render([_wire_user(), {"role": "assistant", "content": PLACEHOLDER}], generate=False)
        _, found, after = text.rpartition(PLACEHOLDER)
        ids = self.tokenizer.encode(after.lstrip()) if found else []
        return [token for token in ids[:1] if self.tokenizer.decode([token]) in self.tokenizer.special]

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int]:
        return self.tokenizer.encode(self.text(messages, tools))

    def text(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] = ()) -> str:
        """A whole conversation, its special-token text guarded."""
        if self._hermes:
            messages = hermes.as_text(hermes.with_tools(messages, tools))
            tools = ()
        wire = wire_messages(self._roles.fit(messages), self.tokenizer)
        return self._template.render(wire, tools=wire_tools(tools, self.tokenizer))

    def extend(self, after: Sampled, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int] | None:
        if not self.extends:
            return None
        text = self.tail(after.reply, messages, cut_thinking=self._cut_thinking(after))
        if text is None:
            return None
        ids = self.tokenizer.encode(text)
        return ids[1:] if after.completion_ids and ids[:1] == [after.completion_ids[-1]] else ids

    def tail(self, reply: ChatMessage, messages: Sequence[ChatMessage], *, cut_thinking: bool = False) -> str | None:
        """What the template puts after the assistant's own words: its closers, `messages`, and the opening of the next turn."""
        base = [ChatMessage(role="user", content="x"), _placeholder(reply, cut_thinking=cut_thinking)]
        try:
            text = self.text([*base, *messages])
        except TemplateRefusal:
            return None
        _, found, after = text.partition(PLACEHOLDER)
        return self.from_closer(after, keep_all=cut_thinking) if found else None

    def from_closer(self, text: str, *, keep_all: bool = False) -> str | None:
        """`text` from the first token on that ends a turn. Guarded text cannot be taken for one."""
        starts = [at for stop in self._stop_texts if (at := text.find(stop)) >= 0]
        if not starts:
            return None
        return text if keep_all else text[min(starts) :]

    def _cut_thinking(self, after: Sampled) -> bool:
        """The turn ended inside its thinking, which then needs its closing word too."""
        reasoning, reply = self.format.reasoning, after.reply
        if reasoning is None or reply.reasoning is None or reply.content or reply.tool_calls:
            return False
        if after.completion_ids and after.completion_ids[-1] in self.stop_token_ids:
            return False
        return reasoning.close not in self.tokenizer.decode(list(after.completion_ids))

    def parser(self, *, turn: str, tools: bool, stops: Sequence[str]) -> Parser:
        return ReplyParser(self.tokenizer, self.format, turn=turn, tools=tools, stops=stops, end_ids=frozenset(self.stop_token_ids))


def _wire_user() -> dict[str, Any]:
    return {"role": "user", "content": "x"}


def _placeholder(reply: ChatMessage, *, cut_thinking: bool) -> ChatMessage:
    """A message of the reply's kind: calls with its names and ids, or thinking, or text."""
    if cut_thinking:
        return ChatMessage(role="assistant", reasoning=PLACEHOLDER)
    if not reply.tool_calls:
        return ChatMessage(role="assistant", content=PLACEHOLDER)
    *first, last = reply.tool_calls
    calls = [ToolCall(id=call.id, name=call.name, arguments="{}") for call in first]
    calls.append(ToolCall(id=last.id, name=last.name, arguments=f'{{"{PLACEHOLDER}": 0}}'))
    return ChatMessage(role="assistant", tool_calls=tuple(calls))
