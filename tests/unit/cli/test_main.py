"""The command's door: what it says when it is asked wrongly, and what it does not load."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.main import COMMANDS, main


def test_help_lists_every_command_and_each_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert main(["train", "--help"]) == 0
    assert "--dry-run" in capsys.readouterr().out
    for name in COMMANDS.keys() - {"train"}:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train"], "which environment? Give --env NAME"),
        (["train", "--env", "contdown"], "Did you mean 'countdown'?"),
        (["train", "--env", "countdown", "--train.step", "3"], "unknown option 'train.step'. Did you mean 'steps'?"),
        (["train", "--env", "countdown", "--env.number", "3"], "Did you mean 'numbers'?"),
        (["train", "--env", "countdown", "--train.group_size", "1"], "use 2 or more, or --objective.preset reinforce"),
        (["train", "--env", "countdown", "--sampling.top_p", "0.9"], "top_p"),
        (["train", "--env", "countdown", "--name", "../out"], "must be a plain folder name"),
        (["train", "--env", "countdown", "--gateway.outside_url", "http://h/v1", "--gateway.outside_model", "m"], "nothing to train"),
        (["train", "--env", "countdown", "--gateway.outside_model", "m"], "needs gateway.outside_url"),
        (["eval", "tiny", "--env", "countdown", "--served-model", "m"], "names a model of an outside URL"),
        (["train", "--resume", "gone"], "there is no run 'gone'"),
        (["episodes"], "the following arguments are required: run"),
        (["show", "gone", "e1"], "there is no run 'gone'"),
        (["bench", "engin"], "Did you mean 'engine'?"),
        (["try", "--env", "countdown", "--model", "gold", "--task", "1000000"], "tasks"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_help_and_import_load_no_heavy_package() -> None:
    asks = "from agentrl.cli.main import main; main(['--help'])"
    code = f"import sys; import agentrl; {asks}; print(sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    for heavy in ("torch", "vllm", "transformers", "datasets", "openai", "aiohttp", "matplotlib"):
        assert f"'{heavy}'" not in loaded


def test_the_key_of_an_outside_endpoint_is_never_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert main(["train", "--env", "countdown", "--gateway.outside_url", "http://h/v1", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert 'outside_url = "http://h/v1"' in shown
    assert "sk-secret" not in shown
    assert "outside_key" not in shown


def test_a_refused_run_leaves_its_name_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "undemonstrated.py").write_text(
        "from agentrl import Env, Task\n\n\nclass Mute(Env):\n    def tasks(self, split):\n        yield Task(prompt=split)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--env", "./undemonstrated.py:Mute", "--name", "mute"]) == 2
    assert "demonstrations" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "mute").exists()
