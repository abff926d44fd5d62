"""The environment that the quickstart shows is the one that its commands train."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_quickstart_shows_the_example_as_it_is() -> None:
    source = (ROOT / "examples" / "sorting" / "sorting.py").read_text(encoding="utf-8")
    shown = source[source.index("from agentrl import") :]
    assert shown in (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
