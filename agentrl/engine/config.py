"""Sections of the model and of what serves it. Read by the gateway (tokenizer), the engine and the trainer (weights)."""

from typing import Any, Literal

from agentrl.config import Section
from agentrl.errors import ConfigError


class ModelConfig(Section, frozen=True):
    """Which model, and how it is spoken to."""

    name: str = "tiny"
    """"tiny" (made and warm-started here), "smollm2" (extra), or any Hugging Face name or folder of a causal language model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the engine's weights and of the trainer's forward; the trainer's own weights are float32 always."""
    template_kwargs: dict[str, Any] = {}
    """Passed to the chat template, such as enable_thinking."""
    tool_format: Literal["native", "hermes"] = "native"
    """hermes: schemas in the system text, calls as <tool_call> JSON; for chat templates without tools."""


class SamplingConfig(Section, frozen=True):
    """How the policy is sampled while training; scaffolds' own wishes are recorded and replaced."""

    temperature: float = 1.0
    """Above 0."""
    top_p: float = 1.0
    """Refused unless 1.0."""
    top_k: int = 0
    """Refused unless 0 (off)."""
    min_p: float = 0.0
    """Refused unless 0.0 (off)."""

    def check(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(f"sampling.temperature={self.temperature}: greedy turns are untrainable; use a value above 0, such as 1.0")
        if self.top_p != 1.0 or self.top_k != 0 or self.min_p != 0.0:
            raise ConfigError(
                "sampling.top_p, top_k and min_p change the distribution, and the trainer does not replay the surviving tokens yet; "
                "leave them at 1.0, 0 and 0.0"
            )


class EngineConfig(Section, frozen=True):
    """The embedded engine."""

    slots: int = 64
    """Sequences that decode together."""
    context_length: int | None = None
    """Tokens per sequence; None: what the model was made for, at most 4096."""
    threads: int = 1
    """Of torch, on the CPU."""
    device: str = "auto"
    """"auto", "cpu", "mps" or "cuda"."""

    def check(self) -> None:
        for name in ("slots", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine.{name}={getattr(self, name)}: use 1 or more")
        if self.context_length is not None and self.context_length < 2:
            raise ConfigError(f"engine.context_length={self.context_length}: a prompt and its answer need 2 tokens or more")
