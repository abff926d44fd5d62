"""The whole configuration of a run: the packages' sections, composed. One TOML file, or the same keys as dotted flags."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import Section, build, merge, parse_flags, read_toml
from agentrl.engine.config import EngineConfig, ModelConfig, SamplingConfig
from agentrl.env import Env
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.objective.config import ObjectiveConfig
from agentrl.rollout.config import RolloutConfig
from agentrl.train.config import TrainConfig

ALIASES = {"env": "env.name", "model": "model.name"}
TINY: dict[str, Any] = {
    "train": {"lr": 1.2e-3, "warmup_steps": 8, "schedule": "linear", "steps": 120, "save_every": 40},
    "engine": {"slots": 128, "context_length": 512},
    "rollout": {"concurrency": 128},
    "eval": {"every": 20},
}
"""Where a 0.1 M-parameter model that was born a minute ago differs from a pretrained one."""


class EvalConfig(Section, frozen=True):
    """Held-out tasks, run before the first step, now and then, and after the last."""

    tasks: int = 256
    """0: no evaluation."""
    every: int = 0
    """Steps between evaluations; 0: only first and last."""
    samples: int = 1
    """Episodes of each task."""

    def check(self) -> None:
        for name, least in (("tasks", 0), ("every", 0), ("samples", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"eval.{name}={getattr(self, name)}: use {least} or more")


class RunConfig(Section, frozen=True):
    """What `agentrl train` was asked to do."""

    name: str = ""
    """Of the run's folder; empty: made of environment, model and seed."""
    seed: int = 0
    """Of everything that is drawn: a tiny model, tasks' and episodes' own generators, sampling, the trainer."""
    env: dict[str, Any] = {}
    """`name` (installed, or ./file.py:Class) and the environment's own settings."""
    model: ModelConfig = ModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    gateway: GatewayConfig = GatewayConfig()
    engine: EngineConfig = EngineConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()

    @property
    def env_name(self) -> str:
        return str(self.env["name"])

    @property
    def env_settings(self) -> dict[str, Any]:
        """The section `[env]` without its name."""
        return {key: value for key, value in self.env.items() if key != "name"}

    def check(self) -> None:
        if not self.env.get("name"):
            raise ConfigError("which environment? Give --env NAME (`agentrl envs` lists them) or --env ./file.py:Class")
        self.objective.check_group_size(self.train.group_size)

    def check_trainable(self) -> None:
        """Raises ConfigError if nobody here plays the policy."""
        if self.gateway.outside_model:
            raise ConfigError(
                f"gateway.outside_model={self.gateway.outside_model!r} plays the policy, so there is nothing to train; "
                "leave it out, or use `agentrl eval URL` or `agentrl try --model URL`"
            )


def with_env(config: RunConfig, env: Env) -> RunConfig:
    """With every setting of the environment in its section, defaults too: what a run was is not to change with a later release."""
    return msgspec.structs.replace(config, env={"name": config.env_name, **without_none(msgspec.to_builtins(env.config))})


def load_config(words: Sequence[str], *, toml: Path | None = None) -> RunConfig:
    """Flags over the TOML file over the model's defaults over the sections' own. Raises ConfigError."""
    written, flags = read_toml(toml) if toml else {}, parse_flags(words, ALIASES)
    if _env_of(flags) not in (None, _env_of(written)):
        # Settings belong to the environment that they were written for.
        written.pop("env", None)
    given = merge(written, flags)
    if isinstance(given.get("env"), list):
        raise ConfigError("several [[env]] tables are not supported yet; give one [env] table with a name")
    name = given.get("model", {}).get("name", ModelConfig().name) if isinstance(given.get("model", {}), Mapping) else ""
    return build(RunConfig, merge(TINY if name == "tiny" else {}, given))


def _env_of(tree: Mapping[str, Any]) -> Any:
    """The environment's name, if there is one."""
    env = tree.get("env")
    return env.get("name") if isinstance(env, Mapping) else None


def as_tree(config: RunConfig) -> dict[str, Any]:
    """As a run's config.toml holds it: what is None is left out, and so is the key of an outside endpoint."""
    tree = without_none(msgspec.to_builtins(config))
    assert isinstance(tree, dict)
    del tree["gateway"]["outside_key"]
    return tree


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_none(inner) for inner in value]
    return value
