"""One task family of reasoning-gym: an endless, repeatable stream of entries.

The package makes entries from a seed and an index within a dataset of a fixed size; some families prepare that size in advance. So the
stream is made of small datasets, each with a seed of its own, and an entry is found again by its chunk and index: a task carries these two
numbers instead of the package's metadata, which is not plain data.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from agentrl.config import did_you_mean
from agentrl.env.seed import derive
from agentrl.errors import ConfigError

CHUNK = 500


class Place(msgspec.Struct, frozen=True):
    """Where an entry lies in its family's stream."""

    chunk: int
    index: int


class Entry(msgspec.Struct, frozen=True):
    """One puzzle of the package, and where it lies."""

    place: Place
    raw: dict[str, Any]

    @property
    def question(self) -> str:
        return str(self.raw["question"])

    @property
    def answer(self) -> str | None:
        answer = self.raw["answer"]
        return None if answer is None else str(answer)


class Family:
    """Entries and their scorer."""

    def __init__(self, name: str, settings: Mapping[str, Any], *, seed: int) -> None:
        self.name = name
        self._settings = dict(settings)
        self._seed = seed
        self._chunk = lru_cache(maxsize=8)(self._make)

    def entries(self) -> Iterator[Entry]:
        chunk = 0
        while True:
            for index in range(CHUNK):
                yield self.entry(Place(chunk, index))
            chunk += 1

    def entry(self, place: Place) -> Entry:
        return Entry(place=place, raw=self._chunk(place.chunk)[place.index])

    def score(self, answer: str, entry: Entry) -> float:
        return float(self._chunk(entry.place.chunk).score_answer(answer, entry.raw))

    def _make(self, chunk: int) -> Any:
        return create(self.name, self._settings | {"seed": derive(self._seed, chunk) % 2**32, "size": CHUNK})


def create(name: str, settings: Mapping[str, Any]) -> Any:
    """The package's dataset. Raises ConfigError naming the right spelling of the family or its setting."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise ConfigError(f"reasoning_gym has no family {name!r}.{did_you_mean(name, DATASETS)} All: {', '.join(sorted(DATASETS))}")
    known = [field for field in DATASETS[name][1].__dataclass_fields__ if field not in ("seed", "size")]
    for key in settings:
        if key not in (*known, "seed", "size"):
            raise ConfigError(f"family {name} has no setting {key!r}.{did_you_mean(key, known)}")
    try:
        return reasoning_gym.create_dataset(name, **settings)
    except (AssertionError, TypeError, ValueError) as cause:
        raise ConfigError(f"family {name} refuses env.settings {dict(settings)}: {cause}") from cause
