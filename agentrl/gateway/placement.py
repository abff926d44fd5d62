"""Where a request goes in the token trie, and what its prompt adds there.

A request that ends where an earlier one ended is a resample and adds nothing. One that goes on after a sampled reply adds the template's
extension. Everything else is rendered fresh; it still hangs below the turn whose history it shares, at the last token that both have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.episode import ChatMessage, Parent, TokenTrie, ToolSpec, Turn
from agentrl.gateway.history import Echo, History, Match, Node, why_unknown
from agentrl.gateway.render import Renderer, Sampled


@dataclass(frozen=True, slots=True)
class Placement:
    """A request's place."""

    parent: Parent | None
    prefix: NDArray[np.int32]
    """Tokens up to the parent point."""
    prompt_ids: list[int]
    """What comes after them."""
    label: str
    """As `Turn.placement`."""
    node: Node
    """Of the request's last message."""
    path: list[Node]
    """Nodes of all its messages, the root first."""
    new_from: int
    """Index of the first message that the parent turn does not have."""


class Placer:
    """Places the requests of one session."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.trie = TokenTrie()
        self.history = History()
        self._newest: tuple[str, NDArray[np.int32]] | None = None

    def match(self, echoes: Sequence[Echo], tools_key: bytes) -> Match:
        return self.history.match(self.history.root(tools_key), echoes)

    def place(self, match: Match, echoes: Sequence[Echo], tools: Sequence[ToolSpec], tools_key: bytes) -> Placement:
        """Raises TemplateRefusal. As slow as what must be tokenized: the messages from match.reply_depth on."""
        again = match.path[-1].point if match.depth == len(echoes) else None
        if again is not None:
            return Placement(again, self.tokens(again), [], _known(match), match.path[-1], match.path, len(echoes))
        parent, prompt_ids, label = self._tokens(match, echoes, tools, tools_key)
        return Placement(
            parent,
            np.empty(0, np.int32) if parent is None else self.tokens(parent),
            prompt_ids,
            label,
            *self._grow(match, echoes),
            new_from=0 if parent is None else (match.depth if label.startswith(("root", "forked")) else match.reply_depth),
        )

    def _grow(self, match: Match, echoes: Sequence[Echo]) -> tuple[Node, list[Node]]:
        path = list(match.path)
        for known in echoes[match.depth :]:
            path.append(self.history.grow(path[-1], [known]))
        return path[-1], path

    def _tokens(
        self, match: Match, echoes: Sequence[Echo], tools: Sequence[ToolSpec], tools_key: bytes
    ) -> tuple[Parent | None, list[int], str]:
        label = self._label(match, echoes, tools_key)
        reply = match.path[match.reply_depth]
        if reply.turn is not None:
            rest = [known.message for known in echoes[match.reply_depth :]]
            extension = self._renderer.extend(self._sampled(reply.turn), rest, tools)
            if extension is not None:
                return Parent(reply.turn, self.trie.full_len(reply.turn)), extension, label
            label = label if label.startswith("forked") else "forked:unproven"
        fresh = self._renderer.render([known.message for known in echoes], tools)
        return *self._share(match, fresh), label

    def _sampled(self, turn_id: str) -> Sampled:
        turn = self.trie[turn_id]
        assert turn.reply is not None
        before = self.trie.full_len(turn_id) - len(turn.completion_ids)
        prefix = self.tokens(Parent(turn_id, before)).tolist() if self._renderer.needs_prefix else ()
        return Sampled(turn.completion_ids.tolist(), turn.reply, turn.finish_reason, prefix)

    def _share(self, match: Match, fresh: list[int]) -> tuple[Parent | None, list[int]]:
        """Hang a fresh prompt below the turn whose messages it shares, at the last common token."""
        via = next((node.via for node in reversed(match.path) if node.via is not None), None)
        if via is None or match.depth == 0:
            return None, fresh
        there = self.tokens(Parent(via, self.trie.full_len(via)))
        count = min(len(there), len(fresh))
        same = there[:count] == np.asarray(fresh[:count], np.int32)
        common = count if same.all() else int(np.argmin(same))
        return (Parent(via, common), fresh[common:]) if common else (None, fresh)

    def _label(self, match: Match, echoes: Sequence[Echo], tools_key: bytes) -> str:
        if match.depth == 0 and self.history.known_under_other_tools(tools_key, echoes):
            return "forked:tools_changed"
        unknown = [known for known in echoes[match.depth :] if known.message.role == "assistant"]
        if unknown and match.depth:
            return f"forked:{why_unknown(match.path[-1], echoes[match.depth])}"
        if any(known.key in self.history.said for known in unknown):
            return "forked:history_edited"
        if not match.reply_depth:
            return "root"
        if any(known.message.role == "assistant" for known in echoes[match.reply_depth :]):
            return "forked:reply_unknown"
        return _known(match)

    def tokens(self, point: Parent) -> NDArray[np.int32]:
        """[point.prefix_len]"""
        newest = self._newest  # read once: this may run in a thread while another turn settles
        if newest is not None and newest[0] == point.turn:
            return newest[1][: point.prefix_len]
        return self.trie.tokens(point.turn, point.prefix_len)

    def settle(self, placed: Placement, turn: Turn) -> None:
        """The turn is in the trie: let later requests find it."""
        for node in reversed(placed.path):
            if node.via is not None:
                break
            node.via = turn.id
        before = self.trie.full_len(turn.id) - len(turn.completion_ids)
        if placed.node.point is None:
            placed.node.point = Parent(turn.id, before)
        self._newest = (turn.id, np.concatenate([placed.prefix, turn.prompt_ids, turn.completion_ids]))
        if turn.reply is not None:
            self.history.add_reply(placed.node, turn.reply, turn.id)


def _known(match: Match) -> str:
    return "exact" if match.exact else "spliced"


def new_messages(echoes: Sequence[Echo], placement: Placement) -> tuple[ChatMessage, ...]:
    return tuple(known.message for known in echoes[placement.new_from :])
