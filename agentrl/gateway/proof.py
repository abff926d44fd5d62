"""Proof at start-up that extending what was sampled gives what the template would have given.

Fifty generated conversations (system texts, tools, parallel calls, thinking, cut turns, unicode, special-token text) are rendered whole,
and everything after an assistant's own words is compared, as text and as ids, with the extension that the renderer makes without seeing
the rest of the conversation. A capability whose conversations fail is refused or, for extension itself, replaced by fresh renders.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from agentrl.episode import ChatMessage, ToolCall, ToolSpec
from agentrl.gateway.render import PLACEHOLDER, Sampled, TemplateRenderer
from agentrl.gateway.template import TemplateRefusal

CONVERSATIONS = 50
_WORDS = ["the", "quick", "brown", "fox", "naïve", "café", "東京", "🦊🏽", "مرحبا", "a", "", "b", "x=1;", "<b>", "{{", "}}", "{%"]
_TOOLS = (
    ToolSpec(
        name="look_up",
        description="Find a thing",
        parameters={"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    ),
    ToolSpec(name="add", description="Add two numbers", parameters={"type": "object", "properties": {"a": {"type": "number"}}}),
)


@dataclass(frozen=True)
class Sample:
    """One generated conversation and the assistant's message in it that stands for what was sampled."""

    messages: list[ChatMessage]
    at: int
    tools: tuple[ToolSpec, ...]
    cut: bool
    """The sampled turn lacks its end-of-turn token."""


@dataclass(frozen=True)
class Proof:
    """Why a capability is not proven; None if it is."""

    extension: str | None
    tools: str | None


def prove(renderer: TemplateRenderer, *, seed: int = 0) -> Proof:
    """Check the renderer on generated conversations, with and without tools."""
    rng = random.Random(seed)
    specials = sorted(renderer.tokenizer.special) or ["<|im_end|>"]
    thinking = renderer.format.reasoning is not None

    def failure(*, tools: bool) -> str | None:
        samples = (_sample(rng, specials, tools=tools, thinking=thinking) for _ in range(CONVERSATIONS // 2))
        return next((why for sample in samples if (why := _failure(renderer, sample)) is not None), None)

    extension = failure(tools=False)
    if renderer.format.calls is None:
        return Proof(extension, "the template does not say how calls are written in a way that is known here")
    return Proof(extension, failure(tools=True))


def _failure(renderer: TemplateRenderer, sample: Sample) -> str | None:
    reply = sample.messages[sample.at]
    before, after = sample.messages[: sample.at], sample.messages[sample.at + 1 :]
    try:
        whole = renderer.text([*before, _marked(reply), *after], sample.tools)
    except TemplateRefusal as refusal:
        return str(refusal)
    words = [tool.name for tool in sample.tools] + [renderer.tokenizer.guard(m.content.strip()) for m in after]
    if missing := next((word for word in words if word not in whole), None):
        return f"the template leaves out {missing!r}"
    _, found, rest = whole.partition(PLACEHOLDER)
    expected = renderer.from_closer(rest) if found else None
    if expected is None:
        return "the template does not end an assistant's message with an end-of-turn token"
    if renderer.tail(reply, after) != expected:
        return "what the template puts after an assistant's message depends on what came before it"
    end = [] if sample.cut else renderer.tokenizer.encode(expected)[:1]
    sampled = Sampled([0, *end], reply, "length" if sample.cut else "stop")
    extended = renderer.extend(sampled, after, sample.tools)
    if extended is None or renderer.tokenizer.encode(whole)[-len(extended) - len(end) :] != [*end, *extended]:
        return "the tokenizer joins tokens across the end of an assistant's message"
    return None


def _marked(reply: ChatMessage) -> ChatMessage:
    """The reply with the placeholder as its last word."""
    if not reply.tool_calls:
        return msgspec.structs.replace(reply, content=reply.content + PLACEHOLDER)
    *first, last = reply.tool_calls
    marked = ToolCall(id=last.id, name=last.name, arguments=f'{{"key": "v", "{PLACEHOLDER}": 1}}')
    return msgspec.structs.replace(reply, tool_calls=(*first, marked))


def _sample(rng: random.Random, specials: Sequence[str], *, tools: bool, thinking: bool) -> Sample:
    messages = [ChatMessage(role="system", content=_text(rng, specials))] if rng.random() < 0.5 else []
    while len(messages) < 8:
        messages.append(ChatMessage(role="user", content=_text(rng, specials)))
        if tools and rng.random() < 0.8:
            calls = tuple(_call(rng, len(messages), k) for k in range(rng.choice([1, 1, 2, 3])))
            messages.append(ChatMessage(role="assistant", reasoning=_thought(rng, thinking), tool_calls=calls))
            messages += [ChatMessage(role="tool", content=_text(rng, specials), tool_call_id=c.id, name=c.name) for c in calls]
        messages.append(ChatMessage(role="assistant", content=_text(rng, []), reasoning=_thought(rng, thinking)))
    messages.pop()
    replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
    at = rng.choice(replies)
    end = next((i for i in replies if i > at), len(messages))
    return Sample(messages[:end], at, _TOOLS if tools else (), cut=rng.random() < 0.3)


def _thought(rng: random.Random, thinking: bool) -> str | None:
    return _text(rng, []) if thinking and rng.random() < 0.5 else None


def _call(rng: random.Random, turn: int, k: int) -> ToolCall:
    arguments = msgspec.json.encode({"key": " ".join(rng.choices(_WORDS, k=3))}).decode()
    return ToolCall(id=f"call{turn:03d}{k:02d}", name=rng.choice(_TOOLS).name, arguments=arguments)


def _text(rng: random.Random, specials: Sequence[str]) -> str:
    words = rng.choices(_WORDS, k=rng.randint(1, 8))
    if specials and rng.random() < 0.4:
        words.insert(rng.randrange(len(words) + 1), rng.choice(specials))
    return " ".join(words).strip() or "x"
