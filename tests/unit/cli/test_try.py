"""`agentrl try` without a model: the conversation is shown, and what is wrong with an environment is said in a line."""

from pathlib import Path

import pytest

from agentrl.cli.main import main

ENV = """
from agentrl import Env, Task

class Good(Env):
    def start(self):
        self.answers = {"2 + 2": "4"}

    def tasks(self, split):
        yield Task(prompt="2 + 2", answer="4")

    def reward(self, task, ep):
        return float(ep.text == self.answers[task.prompt])

    def gold(self, task, rng):
        return task.answer

class Assigns(Good):
    def reward(self, task, ep):
        self.seen = task

class Text(Good):
    def tasks(self, split):
        return ["2 + 2"]

class Nothing(Good):
    def tasks(self, split):
        pass

class Raises(Good):
    def tasks(self, split):
        raise ValueError("boom")
"""


def attempt(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, model: str = "gold") -> int:
    (folder / f"tried_{folder.name.replace('-', '_')}.py").write_text(ENV)
    monkeypatch.chdir(folder)
    return main(["try", "--env", f"./tried_{folder.name.replace('-', '_')}.py:{name}", "--model", model])


def test_the_conversation_and_the_reward_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(tmp_path, monkeypatch, "Good") == 0
    shown = capsys.readouterr().out
    assert "user: 2 + 2\nassistant: 4\n" in shown
    assert "reward 1" in shown
    assert attempt(tmp_path, monkeypatch, "Good", "silent") == 0
    assert "reward 0" in capsys.readouterr().out


def test_an_episode_that_failed_is_a_failed_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(tmp_path, monkeypatch, "Assigns") == 1
    assert "was assigned to while episodes run" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "says"), [("Text", "yielded str"), ("Nothing", "gave NoneType"), ("Raises", "ValueError: boom")])
def test_what_is_wrong_with_tasks_is_said_in_a_line(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(tmp_path, monkeypatch, name) == 1
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
