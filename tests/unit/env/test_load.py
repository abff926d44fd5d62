"""Environments by name, by file, with settings; and the right spelling for what is wrong."""

from pathlib import Path

import pytest

from agentrl.env import installed, load, make
from agentrl.errors import ConfigError, EnvError

SOURCE = """
from agentrl import Env, EnvConfig, Task

class First(Env):
    class Config(EnvConfig, frozen=True):
        size: int = 3

    def tasks(self, split):
        for n in range(self.config.size):
            yield Task(f"{split} {n}")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_file_with_one_environment_needs_no_class(folder: Path) -> None:
    file = folder / "my_first_env.py"
    file.write_text(SOURCE)
    env = make(str(file), {"size": "2", "limits": {"turns": "4"}})
    assert (env.name, env.config.size, env.config.limits.turns) == ("first", 2, 4)
    assert [task.prompt for task in env.tasks("eval")] == ["eval 0", "eval 1"]
    assert load(f"{file}:First") is type(env)


def test_what_is_misspelt_is_named(folder: Path) -> None:
    file = folder / "my_second_env.py"
    file.write_text(SOURCE + "\nclass Second(First): pass\n")
    with pytest.raises(ConfigError, match=r"has 2 environments: First, Second; name one as .*:Class"):
        load(str(file))
    with pytest.raises(ConfigError, match=r"no environment 'Frist'\. Did you mean 'First'"):
        load(f"{file}:Frist")
    with pytest.raises(ConfigError, match=r"unknown option 'env\.sise'\. Did you mean 'size'"):
        make(f"{file}:First", {"sise": "2"})
    with pytest.raises(ConfigError, match="there is no file"):
        load("./nowhere.py:Env")
    with pytest.raises(ConfigError, match="Did you mean 'reasoning_gym'"):
        load("reasoning-gim")
    with pytest.raises(ConfigError, match=r"env\.on_error='retry': use mask, zero or retry\(n\)"):
        make(f"{file}:First", {"on_error": "retry"})


def test_a_file_that_cannot_be_imported_says_why(folder: Path) -> None:
    file = folder / "my_third_env.py"
    file.write_text("import nothing_of_that_name")
    with pytest.raises(EnvError, match="No module named 'nothing_of_that_name'"):
        load(str(file))
    script = folder / "my_script_env.py"
    script.write_text("import sys\nsys.exit(3)")
    with pytest.raises(EnvError, match=r"import .*my_script_env.py: it called sys.exit\(3\)"):
        load(str(script))
    taken = folder / "json.py"
    taken.write_text(SOURCE)
    with pytest.raises(EnvError, match="the module name 'json' is taken"):
        load(str(taken))


def test_an_environment_that_cannot_be_made_says_why(folder: Path) -> None:
    file = folder / "my_fourth_env.py"
    file.write_text(SOURCE + "\n    def __init__(self, config):\n        raise RuntimeError('no licence')\n")
    with pytest.raises(EnvError, match=r"make environment .*my_fourth_env.py: no licence"):
        make(str(file))


def test_installed_environments_have_name_and_version() -> None:
    assert "reasoning_gym" in installed()
    env = make("reasoning_gym", {"family": "leg_counting"})
    assert (env.name, env.version) == ("reasoning_gym", "0.1.0")
    with pytest.raises(ConfigError, match=r"no family 'leg_count'\. Did you mean 'leg_counting'"):
        make("reasoning_gym", {"family": "leg_count"})
    with pytest.raises(ConfigError, match=r"no setting 'min_animal'\. Did you mean 'min_animals'"):
        make("reasoning_gym", {"family": "leg_counting", "settings": '{"min_animal": 2}'})
