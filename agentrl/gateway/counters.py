"""What the gateway counted since its start."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Plain counts; `GatewayStatus` shows them."""

    calls: int = 0
    in_flight: int = 0
    placements: Counter[str] = field(default_factory=Counter)
    wishes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def placement(self, label: str) -> None:
        self.placements[label] += 1

    def error(self, name: str, count: int = 1) -> None:
        self.errors[name] += count
