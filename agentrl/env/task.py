"""A task: one frozen row of data. It travels as plain data, so that it can be leased to a worker anywhere and run again.

Its id is a hash of its content unless given: equal tasks have equal ids, in every process, and the ledger refuses duplicates.
"""

import hashlib
from functools import cached_property
from random import Random
from typing import Any

import msgspec

from agentrl.env.limits import Limits
from agentrl.env.messages import canonical, user
from agentrl.env.sampling import SamplingOptions
from agentrl.env.seed import generator
from agentrl.episode import ChatMessage
from agentrl.errors import EnvError


class Task(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """What an agent is asked to do, and what its answer is graded against."""

    prompt: str | list[ChatMessage] | None
    """Text becomes the user message. Messages may be OpenAI-shaped dicts. None: `run` makes the prompt."""
    answer: Any = None
    """JSON-like; for the grader only."""
    id: str = ""
    system: str | None = None
    """Above the agent's own system text."""
    data: dict[str, Any] = {}
    """JSON-like; what hooks need."""
    limits: Limits | None = None
    sampling: SamplingOptions | None = None

    def __post_init__(self) -> None:
        if isinstance(self.prompt, list | tuple):
            msgspec.structs.force_setattr(self, "prompt", [canonical(message) for message in self.prompt])
        elif not isinstance(self.prompt, str | None):
            raise EnvError(f"Task.prompt must be text, chat messages or None, not {type(self.prompt).__name__}")
        if not self.id:
            msgspec.structs.force_setattr(self, "id", self._content_hash())

    def _content_hash(self) -> str:
        try:
            content = msgspec.json.encode([self.prompt, self.answer, self.system, self.data], order="deterministic")
        except (TypeError, ValueError) as cause:
            raise EnvError(f"a Task holds plain data only (text, numbers, lists, dicts): {cause}") from cause
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    @cached_property
    def rng(self) -> Random:
        """Equal for all members of a group."""
        return generator("task", self.id)

    def seeded(self, seed: int) -> "Task":
        """The same task in a group of its own."""
        bound = msgspec.structs.replace(self)
        bound.__dict__["rng"] = Random(seed)
        return bound

    def prompted(self, prompt: str | list[ChatMessage] | None) -> "Task":
        """The same task (id, answer, rng), asked in other words."""
        asked = msgspec.structs.replace(self, prompt=prompt)
        asked.__dict__["rng"] = self.rng
        return asked

    def opening(self, system: str | None = None) -> list[ChatMessage]:
        """The conversation before the first turn. `system` is the agent's, used if the task has none."""
        prompt = [user(self.prompt)] if isinstance(self.prompt, str) else self.prompt or []
        words = self.system if self.system is not None else system
        if words is None:
            return list(prompt)
        return [ChatMessage(role="system", content=words), *prompt]

    def to_builtins(self) -> dict[str, Any]:
        """Plain data for the wire. Raises EnvError if the task holds anything else."""
        try:
            plain: dict[str, Any] = msgspec.to_builtins(self)
        except TypeError as cause:
            raise EnvError(f"task {self.id}: holds plain data only (text, numbers, lists, dicts): {cause}") from cause
        return plain

    @classmethod
    def from_builtins(cls, plain: dict[str, Any]) -> "Task":
        """Raises EnvError for what is not a task."""
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as cause:
            raise EnvError(f"not a task: {cause}") from cause
