"""Conversations as a template can take them: scaffolds send several, late and `developer` system messages, and users in a row.

Each habit is tried on the template once. One that it refuses, or silently leaves out, is written another way that says the same; what it
takes is passed on as it came.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from agentrl.episode import ChatMessage
from agentrl.gateway.template import Template, TemplateRefusal

_TELL, _TOO, _ASK = "zqsystemone", "zqsystemtwo", "zquser"


@dataclass(frozen=True)
class Roles:
    """What must be written another way."""

    system: bool = False
    """No system role at all: its text goes before the first user's."""
    several_systems: bool = False
    """Only one system message: leading ones are joined."""
    late_system: bool = False
    """None after the start: such a message becomes a user's."""
    users_in_a_row: bool = False
    """Roles must alternate: users in a row are joined."""

    @classmethod
    def of(cls, template: Template) -> "Roles":
        def refuses(*messages: tuple[str, str]) -> bool:
            try:
                text = template.render([{"role": role, "content": content} for role, content in messages])
            except TemplateRefusal:
                return True
            return any(content not in text for _, content in messages)

        return cls(
            system=refuses(("system", _TELL), ("user", _ASK)),
            several_systems=refuses(("system", _TELL), ("system", _TOO), ("user", _ASK)),
            late_system=refuses(("user", _ASK), ("assistant", "a"), ("system", _TELL), ("user", _ASK)),
            users_in_a_row=refuses(("user", _TELL), ("user", _ASK)),
        )

    def fit(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The messages, written as the template takes them."""
        if not (self.system or self.several_systems or self.late_system or self.users_in_a_row):
            return messages
        start = next((i for i, message in enumerate(messages) if message.role not in ("system", "developer")), len(messages))
        told, rest = list(messages[:start]), list(messages[start:])
        if self.several_systems and len(told) > 1:
            told = [ChatMessage(role="system", content="\n\n".join(message.content for message in told))]
        if self.system and told:
            told, rest = [], [ChatMessage(role="user", content=told[0].content), *rest]
        if self.late_system:
            rest = [
                msgspec.structs.replace(message, role="user") if message.role in ("system", "developer") else message for message in rest
            ]
        return [*told, *(_joined(rest) if self.users_in_a_row or self.system else rest)]


def _joined(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    out: list[ChatMessage] = []
    for message in messages:
        if out and out[-1].role == message.role == "user":
            message = msgspec.structs.replace(message, content=f"{out.pop().content}\n\n{message.content}")
        out.append(message)
    return out
