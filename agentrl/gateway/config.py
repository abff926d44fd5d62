"""The gateway's section of the configuration."""

from agentrl.config import Section
from agentrl.errors import ConfigError


class GatewayConfig(Section, frozen=True):
    """How the gateway listens, how long it waits and how much it takes."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback unless workers run elsewhere."""
    port: int = 0
    """0: any free port."""
    public_url: str | None = None
    """Where scaffolds reach it, when that is not http://host:port."""
    body_mb: int = 32
    """Larger request bodies are refused with 413."""
    call_s: float = 1800.0
    """Deadline of one model call, waiting for weight updates and lost engines included."""
    linger_s: float = 2.0
    """How long a call whose client went away waits for that client's retry before it is cancelled."""
    keepalive_s: float = 20.0
    """A waiting client is sent white space this often, so that its own timeout does not fire."""
    loop_chars: int = 16_000
    """Texts up to this length are tokenized on the event loop (some milliseconds), longer ones in a thread."""
    outside_url: str | None = None
    """OpenAI-compatible endpoint (ends in /v1) that serves agents with model "openai/NAME"."""
    outside_key: str = ""
    """API key of outside_url; if empty, commands take OPENAI_API_KEY from the environment. Never written to a run's config.toml."""
    outside_model: str = ""
    """A model of outside_url that plays the policy itself, as in `eval URL` and `try --model URL`; nothing can be trained then."""

    def check(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"gateway.port={self.port} is not a port; use 0 for any free one, or 1 … 65535")
        for name in ("body_mb", "call_s", "keepalive_s", "loop_chars"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"gateway.{name}={getattr(self, name)} must be above 0")
        if self.outside_model and not self.outside_url:
            raise ConfigError(f"gateway.outside_model={self.outside_model!r} needs gateway.outside_url, the endpoint that serves it")
        if self.linger_s < 0:
            raise ConfigError(f"gateway.linger_s={self.linger_s} must not be negative; 0 cancels a call as soon as its client is gone")
