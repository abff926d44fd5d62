"""What `eval` and `try` run an environment on: a run, a model, an outside URL, the gold script, or a person."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError, boundary
from agentrl.runtime.config import RunConfig, load_config
from agentrl.runtime.folder import RUNS, RunFolder

KEY = "OPENAI_API_KEY"
SERVED_MODEL = "for a URL: which of its models; may be left out if it serves one. Its API key is taken from OPENAI_API_KEY"
MODELS_S = 20.0


def is_url(subject: str) -> bool:
    return subject.startswith(("http://", "https://"))


def is_run(subject: str) -> bool:
    return any((root / "config.toml").is_file() for root in (Path(subject), RUNS / subject))


def configured(subject: str, words: Sequence[str], *, served_model: str | None = None) -> tuple[RunConfig, Path | None]:
    """The configuration for a run, a model or a URL, and the checkpoints to start from. `words` are further flags."""
    if is_url(subject):
        return _outside(subject.rstrip("/"), words, served_model), None
    if served_model is not None:
        raise ConfigError(f"--served-model names a model of an outside URL; {subject!r} is none")
    if is_run(subject):
        folder = RunFolder.open(subject)
        return with_key(load_config(words, toml=folder.config)), folder.checkpoints
    return with_key(load_config([*words, "--model", subject])), None


def with_key(config: RunConfig) -> RunConfig:
    """The key of an outside endpoint stands in the environment, so that no file of a run holds it."""
    key = os.environ.get(KEY, "")
    if config.gateway.outside_url is None or config.gateway.outside_key or not key:
        return config
    return msgspec.structs.replace(config, gateway=msgspec.structs.replace(config.gateway, outside_key=key))


def need_env(words: Sequence[str]) -> None:
    if not any(word == "--env" or word.startswith(("--env=", "--env.name")) for word in words):
        raise ConfigError("which environment? Give --env NAME (`agentrl envs` lists them) or --env ./file.py:Class")


def _outside(url: str, words: Sequence[str], served_model: str | None) -> RunConfig:
    config = with_key(load_config([*words, "--gateway.outside_url", url]))
    name = served_model or _only_model(url, config.gateway.outside_key)
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, name=name),
        gateway=msgspec.structs.replace(config.gateway, outside_model=name),
    )


def _only_model(url: str, key: str) -> str:
    """What the endpoint serves. Raises ConfigError unless that is one model."""
    # Imported here: only this case asks anything over HTTP before a process is started.
    import httpx

    with boundary(ConfigError, f"ask {url}/models what is served there (or name it with --served-model)"):
        answer = httpx.get(f"{url}/models", headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=MODELS_S)
        answer.raise_for_status()
        listed: list[Any] = answer.json()["data"]
        names = [str(model["id"]) for model in listed]
    if len(names) != 1:
        raise ConfigError(f"{url} serves {len(names)} models; choose one with --served-model NAME: {', '.join(names[:10])}")
    return names[0]
