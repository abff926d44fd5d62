"""From flags and a file to a whole configuration, and back."""

from pathlib import Path

import pytest
import tomli_w

from agentrl.cli.main import main
from agentrl.env import make
from agentrl.errors import ConfigError
from agentrl.runtime.config import RunConfig, as_tree, load_config, with_env


def written(config: RunConfig, path: Path) -> Path:
    path.write_text(tomli_w.dumps(as_tree(config)), encoding="utf-8")
    return path


def resolved(*words: str) -> RunConfig:
    config = load_config(words)
    return with_env(config, make(config.env_name, config.env_settings))


def test_what_a_run_writes_down_is_read_back_the_same(tmp_path: Path) -> None:
    config = resolved("--env", "countdown", "--env.numbers", "4", "--env.limits.turns", "3", "--env.on_error", "retry(2)")
    assert (config.env["numbers"], config.env["limits"]) == (4, {"turns": 3})
    assert config.env["operators"] == "+-*", "defaults stand there too"
    again = load_config([], toml=written(config, tmp_path / "config.toml"))
    assert again == config
    env = make(again.env_name, again.env_settings)
    assert with_env(again, env) == config
    assert (env.config.numbers, env.config.limits.turns, env.config.retries) == (4, 3, 2)


def test_settings_belong_to_the_environment_that_they_were_written_for(tmp_path: Path) -> None:
    file = written(resolved("--env", "countdown", "--env.numbers", "4"), tmp_path / "config.toml")
    assert load_config(["--env", "countdown", "--seed", "1"], toml=file).env["numbers"] == 4
    assert load_config(["--env", "reasoning_gym"], toml=file).env == {"name": "reasoning_gym"}
    assert load_config(["--env.numbers", "3"], toml=file).env["numbers"] == "3"


def test_a_dry_run_shows_the_environments_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "countdown", "--train.steps", "6", "--dry-run"]) == 0, "fewer steps than the tiny model's warm-up"
    shown = capsys.readouterr().out
    for setting in ('on_error = "mask"', "numbers = "):
        assert setting in shown


def test_an_outside_model_cannot_be_trained() -> None:
    config = load_config(["--env", "x", "--gateway.outside_url", "http://h/v1", "--gateway.outside_model", "m"])
    with pytest.raises(ConfigError, match=r"agentrl eval URL"):
        config.check_trainable()
