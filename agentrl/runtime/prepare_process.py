"""Main of the preparation process: finds or makes the model to start from, so that the controller never loads torch.

It says what it is doing, a JSON line each, and ends with one line that says where things are.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

from agentrl.env import make
from agentrl.runtime.child import read_spec
from agentrl.runtime.log import log_to_stderr

MODULE = "agentrl.runtime.prepare_process"


class PrepareSpec(msgspec.Struct, frozen=True):
    model: str
    """As in `model.name`."""
    env: str
    settings: dict[str, Any]
    seed: int
    cache: str
    """Folder of the models made or converted here."""
    checkpoints: str | None = None
    """Of the run to resume."""


class Doing(msgspec.Struct, frozen=True, tag="doing"):
    """Progress."""

    what: str
    fraction: float | None = None


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The end of preparation."""

    folder: str
    """Of the model, in Hugging Face format."""
    checkpoint: str | None = None
    """The newest whole one of the run to resume."""
    step: int = 0
    """Of that checkpoint."""
    refused: tuple[str, ...] = ()
    """Newer checkpoints that are not whole, and why."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """An error made for people."""

    kind: str
    message: str


Line = Doing | Prepared | Refused


def say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def run(spec: PrepareSpec) -> Prepared:
    # torch is loaded here, after the parent's pipe is watched.
    from agentrl.train.checkpoint import latest

    found = latest(Path(spec.checkpoints)) if spec.checkpoints else None
    folder = _model(spec)
    if found is None:
        return Prepared(str(folder))
    return Prepared(str(folder), str(found.path), found.manifest.step, tuple(map(str, found.refused)))


def _model(spec: PrepareSpec) -> Path:
    pretrained = None
    from agentrl.train.tiny.prepare import prepare_tiny
    from agentrl.train.tiny.warmstart import Progress

    def warm(at: Progress) -> None:
        say(Doing(f"warm start on demonstrations, step {at.step}/{at.steps}, loss {at.loss:.2f}", at.step / at.steps))

    if spec.model == "tiny":
        return prepare_tiny(make(spec.env, spec.settings), seed=spec.seed, cache_dir=Path(spec.cache), progress=warm)
    return pretrained(spec.model, cache_dir=Path(spec.cache))


def main() -> None:
    log_to_stderr("prepare")
    from agentrl.errors import AgentRLError

    try:
        say(run(read_spec(PrepareSpec)))
    except AgentRLError as error:
        say(Refused(type(error).__name__, str(error)))


if __name__ == "__main__":
    main()
