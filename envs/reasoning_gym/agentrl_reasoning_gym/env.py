"""Any family of reasoning-gym by name: `--env reasoning_gym --env.family leg_counting`. One turn, the family's own scorer."""

import hashlib
import re
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

from agentrl import Agent, Env, EnvConfig, Episode, Limits, Task
from agentrl.env import Split, assistant, user
from agentrl.episode import ChatMessage
from agentrl.errors import ConfigError, EnvError
from agentrl_reasoning_gym.family import Entry, Family, Place, create

HELD_OUT = 8
"""One puzzle in so many, chosen by its own text, is for evaluation: no seed can bring it into training."""
EXHAUSTED = 2000
"""After so many puzzles in a row that were there before, the family has no more."""


class ReasoningGym(Env):
    """Puzzles of one family."""

    class Config(EnvConfig, frozen=True):
        family: str = "chain_sum"
        """Any dataset name of the reasoning-gym package."""
        settings: dict[str, Any] = {}
        """The family's own configuration, as JSON: '{"min_terms": 2}'."""
        seed: int = 0
        """Of the stream of puzzles."""
        system: str = "Give only the final answer, between <answer> and </answer>."
        """The system message."""
        shots: int = 0
        """Solved puzzles that open every conversation, answered as the family does: for models too small to follow an instruction. They
        are the training split's first, and are not trained on."""

        def check(self) -> None:
            super().check()
            if self.shots < 0:
                raise ConfigError(f"env.shots={self.shots}: use 0 or more")
            if {"seed", "size"} & set(self.settings):
                raise ConfigError("env.settings: the stream's seed is env.seed, and it has no size; leave both out")
            create(self.family, self.settings)

    agent = Agent(limits=Limits(turns=1))
    config: Config

    def __init__(self, config: EnvConfig | None = None) -> None:
        super().__init__(config)
        self.family = Family(self.config.family, self.config.settings, seed=self.config.seed)
        self._opening = [message for _, shot in islice(self._puzzles("train"), self.config.shots) for message in _solved(shot)]

    def tasks(self, split: Split) -> Iterator[Task]:
        """Each puzzle once."""
        for name, entry in islice(self._puzzles(split), self.config.shots if split == "train" else 0, None):
            yield Task(
                [*self._opening, user(entry.question)],
                entry.answer,
                id=name,
                system=self.config.system,
                data={"chunk": entry.place.chunk, "index": entry.place.index},
            )

    def _puzzles(self, split: Split) -> Iterator[tuple[str, Entry]]:
        """Their names and what they are; which split one belongs to is decided by its text."""
        seen: set[str] = set()
        repeats = 0
        for entry in self.family.entries():
            name = hashlib.blake2b(f"{self.family.name}\0{entry.question}".encode(), digest_size=8).hexdigest()
            if (int(name, 16) % HELD_OUT == 0) != (split == "eval"):
                continue
            repeats = repeats + 1 if name in seen else 0
            if repeats > EXHAUSTED:
                return
            if not repeats:
                seen.add(name)
                yield name, entry

    def reward(self, task: Task, ep: Episode) -> float:
        """The family's score; an answer that its scorer cannot even read scores 0, as does an empty one."""
        entry = self.family.entry(Place(**task.data))
        if entry.question != task.opening(None)[-1].content:
            raise EnvError(
                f"task {task.id} is another puzzle here than where it was made: give all workers the same reasoning-gym version and "
                "PYTHONHASHSEED (some of its families follow the order of sets)"
            )
        answer = final_answer(ep.text)
        if not answer:
            return 0.0
        try:
            return self.family.score(answer, entry)
        except Exception:  # the package's scorers parse the model's words with int(), eval() and the like
            ep.metrics["unreadable"] = 1.0
            return 0.0

    def gold(self, task: Task, rng: Random) -> str | None:
        return f"<answer>{task.answer}</answer>" if task.answer else None


def _solved(entry: Entry) -> tuple[ChatMessage, ChatMessage]:
    if not entry.answer:
        raise ConfigError("env.shots: this family gives no answers to show; use 0")
    return user(entry.question), assistant(entry.answer)


def final_answer(text: str) -> str:
    """What is in the last answer tag; without one, the whole text."""
    tagged = re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL)
    return (tagged[-1] if tagged else text).strip()
