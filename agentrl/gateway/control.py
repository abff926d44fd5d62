"""The gateway's control messages: how workers open sessions and how the controller seals episodes. Scaffolds never see these.

    POST /control/sessions  SessionSpec → Session
    POST /control/seal      EpisodeRecord → Sealed
    POST /control/discard   Discard → {}
    GET  /control/status    → GatewayStatus
All bodies are msgpack; all need the run's token as Bearer.
"""

import msgspec


class SessionSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One agent run's right to call the model."""

    episode: str
    agent_run: str
    policy: str = "policy"
    """Or "openai/NAME": relayed to the outside endpoint, untrained."""
    trained: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    tokens_per_turn: int | None = None
    """Upper bound on one turn's completion; None: what the context leaves."""
    tokens: int | None = None
    """Upper bound on the session's sampled tokens; a call beyond it gets the dialect's context-length error."""


class Session(msgspec.Struct, frozen=True):
    """`secret` is the API key of the session, and its path in `/s/<secret>/v1`."""

    secret: str
    base_url: str
    """Without a trailing slash, ends in /v1."""


class Discard(msgspec.Struct, frozen=True):
    """Close an episode's sessions and forget their turns."""

    episode: str


class GatewayStatus(msgspec.Struct, frozen=True):
    """Counters since the start."""

    sessions: int
    calls: int
    in_flight: int
    placements: dict[str, int] = {}
    replaced_wishes: dict[str, int] = {}
    """Sampling parameters that scaffolds asked for and the run replaced, by name."""
    errors: dict[str, int] = {}
