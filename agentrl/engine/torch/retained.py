"""KV that outlives its call, so that the next turn of a session, or another member of a group, need not compute it again.

Each entry is exactly as long as its sequence and is given up, oldest use first, when the budget is spent. KV made under older weights
serves only the session that made it: one episode may go on over mixed KV and say so, but a new one must not inherit KV of unbounded age.
"""

from dataclasses import dataclass

from torch import Tensor

from agentrl.engine.torch.prefix import PrefixTree, Tokens


@dataclass(slots=True, eq=False)
class Retained:
    """The KV of one finished call."""

    tokens: Tokens
    kv: Tensor
    """[layers, 2, tokens, kv_heads * head_dim]"""
    session: str
    version: int
    """Of its oldest token."""


class RetainedKV:
    """All entries, in order of last use."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._bytes = 0
        self._entries: dict[Retained, None] = {}
        self._tree: PrefixTree[Retained] = PrefixTree()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Retained) -> None:
        self._entries[entry] = None
        self._tree.insert(entry.tokens, entry)
        self._bytes += entry.kv.nbytes
        while self._bytes > self._budget:
            self.drop(next(iter(self._entries)))

    def drop(self, entry: Retained) -> None:
        """Forget an entry; harmless if it is forgotten already."""
        if entry in self._entries:
            del self._entries[entry]
            self._tree.remove(entry.tokens, entry)
            self._bytes -= entry.kv.nbytes

    def match(self, tokens: Tokens, *, session: str, version: int) -> tuple[Retained, int] | None:
        """The entry that shares most with `tokens`, and how many tokens that is. Counts as a use."""
        found = self._tree.match(tokens, lambda entry: entry.version == version or (bool(session) and entry.session == session))
        if found is not None:
            self._entries[found[0]] = self._entries.pop(found[0])
        return found

    def clear(self) -> None:
        self._entries.clear()
        self._tree = PrefixTree()
        self._bytes = 0
