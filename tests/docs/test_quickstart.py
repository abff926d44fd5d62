"""The environments that README and quickstart show are those that their commands run."""

import re
import shlex
from pathlib import Path

import pytest

from agentrl.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_quickstart_shows_the_example_as_it_is() -> None:
    source = (ROOT / "examples" / "sorting" / "sorting.py").read_text(encoding="utf-8")
    shown = source[source.index("from agentrl import") :]
    assert shown in (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_the_readmes_commands_take_the_readmes_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but for the model: a dry run loads none, and a silent one plays."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    source = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert source is not None
    (tmp_path / "vowels.py").write_text(source[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ agentrl (.*)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command, comments=True)
        assert main([*words, *(["--dry-run"] if words[0] == "train" else ["--model", "silent"])]) == 0, command
