"""How a model writes: which words open and close its thinking and its tool calls.

It is read off the chat template, because that is what the model was trained on; a template that writes calls in a way that is not known
here gets no tools rather than a guess.
"""

from dataclasses import dataclass

from agentrl.gateway.template import Template


@dataclass(frozen=True)
class Marks:
    """The words around a part of a reply."""

    open: str
    close: str


THINK = Marks("<think>", "</think>")
HERMES = Marks("<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class ReplyFormat:
    """None: the model has no such part."""

    reasoning: Marks | None = None
    calls: Marks | None = None
    """Around a JSON object with name and arguments."""
    opened: bool = False
    """The prompt ends with the opening word of the reasoning, so the reply starts inside it."""


def format_of(template: Template, *, hermes: bool) -> ReplyFormat:
    """`hermes`: calls are asked for in the system text, whatever the template knows."""
    source = template.source
    reasoning = THINK if THINK.close in source else None
    knows_calls = HERMES.open in source and "<function=" not in source and "<arg_key>" not in source
    prompt = template.render([{"role": "user", "content": "x"}])
    return ReplyFormat(
        reasoning=reasoning,
        calls=HERMES if hermes or knows_calls else None,
        opened=reasoning is not None and prompt.rstrip().endswith(reasoning.open),
    )
