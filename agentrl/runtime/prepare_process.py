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
    from agentrl.train.pretrained import pretrained
    from agentrl.train.tiny.prepare import prepare_tiny

    def progress(what: str, fraction: float | None = None) -> None:
        say(Doing(what, fraction))

    cache = Path(spec.cache)
    if spec.model == "tiny":
        env = make(spec.env, spec.settings)
        folder = prepare_tiny(env, seed=spec.seed, cache_dir=cache, progress=progress)
    else:
        folder = pretrained(spec.model, cache_dir=cache, progress=progress)
    found = latest(Path(spec.checkpoints)) if spec.checkpoints else None
    if found is None:
        return Prepared(str(folder))
    return Prepared(str(folder), str(found.path), found.manifest.step, tuple(map(str, found.refused)))


def main() -> None:
    log_to_stderr("prepare")
    from agentrl.errors import AgentRLError

    try:
        say(run(read_spec(PrepareSpec)))
    except AgentRLError as error:
        say(Refused(type(error).__name__, str(error)))


if __name__ == "__main__":
    main()
