"""What `eval` and `try` run an environment on: a run, a model, an outside URL, the gold script, or a person."""

from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.runtime.config import RunConfig, load_config
from agentrl.runtime.folder import RUNS, RunFolder


def is_url(subject: str) -> bool:
    return subject.startswith(("http://", "https://"))


def is_run(subject: str) -> bool:
    return any((root / "config.toml").is_file() for root in (Path(subject), RUNS / subject))


def configured(subject: str, words: Sequence[str]) -> tuple[RunConfig, Path | None]:
    """The configuration for a run or a model, and the checkpoints to start from. `words` are further flags."""
    if is_run(subject):
        folder = RunFolder.open(subject)
        return load_config(words, toml=folder.config), folder.checkpoints
    return load_config([*words, "--model", subject]), None


def need_env(words: Sequence[str]) -> None:
    if not any(word == "--env" or word.startswith(("--env=", "--env.name")) for word in words):
        raise ConfigError("which environment? Give --env NAME (`agentrl envs` lists them) or --env ./file.py:Class")
