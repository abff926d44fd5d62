"""What a session's scaffold said so far, as a tree of messages, so that a request finds its place among the turns.

Scaffolds send their whole history with every call, and not byte for byte as it was: arguments re-spaced, null for "", white space moved.
So a message is found by the ids that we issued where it carries any, and by normalised content otherwise. A request walks down one node a
message; where it leaves the tree, it branches off. Nothing is ever removed: a rewind is only a walk that ends earlier.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from agentrl.episode import ChatMessage, Parent, ToolCall

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Echo:
    """A message of a request."""

    message: ChatMessage
    key: bytes
    """Equal for messages that say the same."""


@dataclass(slots=True, eq=False)
class Node:
    """A message at its place in a conversation."""

    message: ChatMessage | None = None
    """None at the root."""
    turn: str | None = None
    """The turn that sampled this message; None for messages that did not come from the policy."""
    point: Parent | None = None
    """Where the prompt of a request that ended with this message ended in the token trie."""
    via: str | None = None
    """A turn whose tokens run through this message."""
    children: dict[bytes, list["Node"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """How far a request's messages are known."""

    path: list[Node]
    """One node a known message, the root first."""
    exact: bool
    """Every known message came back as it was."""

    @property
    def depth(self) -> int:
        return len(self.path) - 1

    @property
    def reply_depth(self) -> int:
        """Messages up to and including the last one that the policy sampled; 0 if there is none."""
        return next((depth for depth in range(self.depth, 0, -1) if self.path[depth].turn is not None), 0)


def echo(message: ChatMessage) -> Echo:
    return Echo(message, _key(message, message.reasoning))


def _key(message: ChatMessage, reasoning: str | None) -> bytes:
    role = "system" if message.role == "developer" else message.role
    calls = [(call.name, _arguments(call)) for call in message.tool_calls]
    said = (role, message.content.strip(), (reasoning or "").strip(), calls)
    return blake2b(_encode(said), digest_size=16).digest()


def _arguments(call: ToolCall) -> Any:
    try:
        return msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        return call.arguments.strip()


class History:
    """The tree, one root for each set of tools (another set makes another prompt)."""

    def __init__(self) -> None:
        self._roots: dict[bytes, Node] = {}
        self.said: set[bytes] = set()
        """Keys of all that the policy said, wherever."""

    def root(self, tools: bytes) -> Node:
        return self._roots.setdefault(tools, Node())

    def known_under_other_tools(self, tools: bytes, echoes: Sequence[Echo]) -> bool:
        """Some other root knows a reply of the policy on this path."""
        others = (root for key, root in self._roots.items() if key != tools)
        return any(self.match(root, echoes).reply_depth for root in others)

    def match(self, root: Node, echoes: Sequence[Echo]) -> Match:
        path, exact = [root], True
        node = root
        for known in echoes:
            twins = node.children.get(known.key)
            if not twins:
                break
            node = twins[0] if len(twins) == 1 else _own(twins, known)
            if node.message is not known.message:
                if node.message == known.message:
                    node.message = known.message  # so that the next look is by identity
                else:
                    exact = False
            path.append(node)
        return Match(path, exact)

    def grow(self, node: Node, echoes: Sequence[Echo]) -> Node:
        """Add messages below a node; the last one's node."""
        for known in echoes:
            child = Node(message=known.message)
            node.children.setdefault(known.key, []).append(child)
            node = child
        return node

    def add_reply(self, node: Node, reply: ChatMessage, turn: str) -> None:
        known = echo(reply)
        self.said.add(known.key)
        node.children.setdefault(known.key, []).append(Node(message=reply, turn=turn, via=turn))


def _own(twins: list[Node], known: Echo) -> Node:
    """Among equal messages the one with the ids that came back; without ids the newest."""
    ids = [call.id for call in known.message.tool_calls]
    for twin in twins if ids else ():
        if twin.message is not None and [call.id for call in twin.message.tool_calls] == ids:
            return twin
    return twins[-1]


def why_unknown(node: Node, known: Echo) -> str:
    """Why the message is not below the node, as a word for the books."""
    if known.message.role != "assistant":
        return "history_edited"
    sampled = list(_replies(node))
    if any(reply.reasoning and _key(reply, None) == known.key for reply in sampled):
        return "thinking_dropped"
    ids = {call.id for call in known.message.tool_calls}
    if any(call.id in ids for reply in sampled for call in reply.tool_calls):
        return "reply_edited"
    return "reply_unknown"


def _replies(node: Node) -> Iterator[ChatMessage]:
    for twins in list(node.children.values()):
        for child in twins:
            if child.turn is not None and child.message is not None:
                yield child.message
