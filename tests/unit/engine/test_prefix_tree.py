"""The tree finds what a search through all sequences finds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.torch.prefix import PrefixTree

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12)


def shared(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=200, deadline=None)
@given(sequences, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)), st.lists(st.integers(0, 2), min_size=1, max_size=10))
def test_the_longest_prefix_among_eligible_holders(known, removed, banned, wanted):
    tree = PrefixTree()
    for holder, tokens in enumerate(known):
        tree.insert(np.array(tokens, np.int32), holder)
    for holder, tokens in enumerate(known):
        if holder in removed:
            tree.remove(np.array(tokens, np.int32), holder)
    lengths = {h: shared(tokens, wanted) for h, tokens in enumerate(known) if h not in removed | banned}
    found = tree.match(np.array(wanted, np.int32), lambda holder: holder not in banned)
    best = max(lengths.values(), default=0)
    if best == 0:
        assert found is None
    else:
        holder, length = found
        assert length == best == lengths[holder]
        assert holder == max(h for h in lengths if lengths[h] == best)


def test_a_tree_without_holders_is_empty():
    tree = PrefixTree()
    tree.insert(np.array([1, 2, 3], np.int32), "a")
    tree.insert(np.array([1, 2, 4, 5], np.int32), "b")
    tree.remove(np.array([1, 2, 3], np.int32), "a")
    tree.remove(np.array([1, 2, 4, 5], np.int32), "b")
    assert tree._root.children == {}
