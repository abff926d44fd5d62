"""Randomness that can be repeated: every generator's seed is derived by name from the one above it.

`task.rng` is equal for all members of a group (the same puzzle, the same noise in the world), `ep.rng` differs per member.
"""

import hashlib
from random import Random


def derive(*parts: int | str) -> int:
    """A 63-bit seed, the same in every process and Python version."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*parts: int | str) -> Random:
    return Random(derive(*parts))
