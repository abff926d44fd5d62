"""Main of the preparation process: finds or makes the model to start from, so that the controller never loads torch.

It says what it is doing, a JSON line each, and ends with one line that says where things are.
"""

from pathlib import Path
from statistics import mean
from typing import Any

import anyio
import msgspec

from agentrl.env import Env, make
from agentrl.rollout.pages import first_tasks
from agentrl.runtime.child import read_spec, tell
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
    eval_tasks: int = 0
    """Held-out tasks over which the environment's control reward is averaged."""
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
    control: float | None = None
    """What a policy without the skill earns on the held-out tasks, if the environment knows."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """An error made for people."""

    kind: str
    message: str


Line = Doing | Prepared | Refused


def run(spec: PrepareSpec) -> Prepared:
    # torch is loaded here, after the parent's pipe is watched.
    from agentrl.train.checkpoint import latest

    env = make(spec.env, spec.settings)
    found = latest(Path(spec.checkpoints)) if spec.checkpoints else None
    return Prepared(
        folder=str(_model(spec, env)),
        checkpoint=str(found.path) if found else None,
        step=found.manifest.step if found else 0,
        refused=tuple(map(str, found.refused)) if found else (),
        control=anyio.run(_control, env, spec.eval_tasks),
    )


def _model(spec: PrepareSpec, env: Env) -> Path:
    from agentrl.train.pretrained import pretrained
    from agentrl.train.tiny.prepare import prepare_tiny
    from agentrl.train.tiny.warmstart import Progress

    def warm(at: Progress) -> None:
        tell(Doing(f"warm start on demonstrations, step {at.step}/{at.steps}, loss {at.loss:.2f}", at.step / at.steps))

    if spec.model == "tiny":
        return prepare_tiny(env, seed=spec.seed, cache_dir=Path(spec.cache), progress=warm)
    return pretrained(spec.model, cache_dir=Path(spec.cache))


async def _control(env: Env, count: int) -> float | None:
    """Mean control reward of the first `count` held-out tasks; None unless the environment gives it for each."""
    if type(env).control_reward is Env.control_reward:
        return None
    rewards: list[float] = []
    for task in await first_tasks(env, "eval", count):
        reward = env.control_reward(task, env.bounds(task).turns)
        if reward is None:
            return None
        rewards.append(reward)
    return mean(rewards) if rewards else None


def main() -> None:
    log_to_stderr("prepare")
    from agentrl.errors import AgentRLError

    try:
        tell(run(read_spec(PrepareSpec)))
    except AgentRLError as error:
        tell(Refused(type(error).__name__, str(error)))


if __name__ == "__main__":
    main()
