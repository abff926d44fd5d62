"""One agent run's line to the model: its secret, its place in history, its turns and its calls in flight."""

from collections import OrderedDict
from dataclasses import dataclass, field

import anyio

from agentrl.gateway.call import Call
from agentrl.gateway.control import SessionSpec
from agentrl.gateway.history import Echo
from agentrl.gateway.placement import Placer
from agentrl.gateway.render import Renderer

_REMEMBERED_CALLS = 8


@dataclass(eq=False, slots=True)
class OpenSession:
    """A session while its episode runs."""

    spec: SessionSpec
    secret: str
    renderer: Renderer
    placer: Placer = field(init=False)
    placing: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    """Requests are placed one at a time, in the order they came."""
    known: dict[bytes, Echo] = field(default_factory=dict)
    """Messages by the bytes that they came as, so that history is not parsed again with every call."""
    in_flight: set[Call] = field(default_factory=set)
    recent: "OrderedDict[int, Call]" = field(default_factory=OrderedDict)
    """The newest call with each body, for retries."""
    undelivered: set[str] = field(default_factory=set)
    """Turns whose reply did not reach the client."""
    calls: int = 0
    sampled: int = 0

    def __post_init__(self) -> None:
        self.placer = Placer(self.renderer)

    def remember(self, body: int, call: Call) -> None:
        self.recent[body] = call
        self.recent.move_to_end(body)
        while len(self.recent) > _REMEMBERED_CALLS:
            self.recent.popitem(last=False)

    def seed(self) -> int | None:
        """Another one for every call, or resamples would repeat each other."""
        return None if self.spec.seed is None else (self.spec.seed * 1_000_003 + self.calls) & 0x7FFFFFFF

    def tokens_left(self) -> int | None:
        return None if self.spec.tokens is None else self.spec.tokens - self.sampled

    @property
    def outside(self) -> str | None:
        """The outside model's name."""
        return self.spec.policy.removeprefix("openai/") if self.spec.policy.startswith("openai/") else None
