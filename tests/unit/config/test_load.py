"""Flags and TOML meet frozen sections; nothing misspelt passes."""

from pathlib import Path
from typing import Literal

import pytest

from agentrl.config import Section, build, merge, parse_flags, read_toml
from agentrl.errors import ConfigError


class Inner(Section, frozen=True):
    lr: float = 1e-3
    names: tuple[str, ...] = ()

    def check(self) -> None:
        if self.lr < 0:
            raise ConfigError("inner.lr must be 0 or more")


class Outer(Section, frozen=True):
    inner: Inner = Inner()
    mode: Literal["fast", "slow"] = "fast"
    steps: int | None = None


def test_flags_win_over_toml_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('mode = "slow"\n[inner]\nlr = 0.5\nnames = ["a"]\n')
    config = build(Outer, merge(read_toml(file), parse_flags(["--inner.lr", "1e-6", "--steps=3"])))
    assert config == Outer(inner=Inner(lr=1e-6, names=("a",)), mode="slow", steps=3)


def test_lists_on_the_command_line() -> None:
    assert build(Outer, parse_flags(["--inner.names", "a, b"])).inner.names == ("a", "b")
    assert build(Outer, parse_flags(["--inner.names", '["a, b"]'])).inner.names == ("a, b",)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--inner.lrr", "1"], r"unknown option 'inner.lrr'. Did you mean 'lr'\?"),
        (["--iner.lr", "1"], r"unknown option 'iner'. Did you mean 'inner'\?"),
        (["--mode", "medium"], r"'mode' cannot be 'medium'. Known: fast, slow\."),
        (["--mode", "slwo"], r"'mode' cannot be 'slwo'. Did you mean 'slow'\?"),
        (["--steps", "many"], "'steps' cannot be 'many'"),
        (["--inner", "3"], "'inner' is a section with keys lr, names"),
        (["--inner.lr", "-1"], "inner.lr must be 0 or more"),
        (["train"], "unexpected word 'train'"),
    ],
)
def test_nonsense_is_refused_with_the_fix(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(Outer, parse_flags(flags))


def test_a_toml_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[inner\n")
    with pytest.raises(ConfigError, match=r"run.toml is not valid TOML: .*line 1"):
        read_toml(file)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"name = '\xff'\n")
    with pytest.raises(ConfigError, match=r"run.toml is not valid TOML: it is not UTF-8 text \(invalid start byte at byte 8\)"):
        read_toml(file)
