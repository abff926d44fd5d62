"""Every error that crosses a package boundary has a name here.

A bad episode is data (an `ErrorRecord` in its record); a bad program is one of these exceptions. Messages say what happened, where, and
what to do about it, because the person who reads them is rarely the one who wrote the failing line.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class AgentRLError(Exception):
    """Base of all errors raised on purpose; the command line prints these without a traceback."""


class ConfigError(AgentRLError):
    """A setting is unknown, of the wrong type, or refused in combination; the message carries the fix."""


class EnvError(AgentRLError):
    """User code of an environment broke its contract (tasks, tools, rewards, set-up)."""


class ToolError(AgentRLError):
    """Raised by a tool to tell the model, in its own words, that the call failed. Not a defect of the episode."""


class LimitReached(AgentRLError):
    """An agent run met one of its `Limits`. `reason` is the terminal reason to record."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or f"the agent run reached its limit: {reason}")
        self.reason = reason


class GatewayError(AgentRLError):
    """The gateway refused or could not serve a call."""


class EngineError(AgentRLError):
    """An engine failed; the call that met it may be made again on another engine."""


class ContextOverflow(EngineError):
    """The prompt leaves no room for one new token in the model's context."""


class EngineQuarantined(EngineError):
    """The engine's weights are of unknown state (a failed load); it serves nothing until a full load succeeds."""


class WeightError(AgentRLError):
    """A weight payload is torn, of the wrong base, or fails its checksum; nothing of it was served."""


class LedgerError(AgentRLError):
    """The journal refuses a transition, or the run folder belongs to another process."""


class StoreError(AgentRLError):
    """An episode blob cannot be read or written (torn, wrong schema, disk full)."""


class ProcessError(AgentRLError):
    """A supervised process did not start, died, or fell silent; the message ends with the last lines of its log and the log's path."""


class TrainError(AgentRLError):
    """An optimizer update cannot be made as asked: numbers that disagree, a loss that is not finite, data that cannot be replayed."""


class CheckpointError(AgentRLError):
    """A checkpoint is missing, torn or of another model."""


@contextmanager
def boundary(error: type[AgentRLError], doing: str) -> Iterator[None]:
    """Give a foreign exception our name where it crosses into our code; our own errors pass unchanged.

    >>> with boundary(StoreError, "write episode e1"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    agentrl.errors.StoreError: write episode e1: [Errno 28] No space left on device
    """
    try:
        yield
    except AgentRLError:
        raise
    except Exception as cause:
        raise error(f"{doing}: {cause or type(cause).__name__}") from cause
