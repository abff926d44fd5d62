"""docs/configuration.md is what the sections say of themselves, today."""

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_configuration_page_is_current() -> None:
    page = runpy.run_path(str(DOCS / "generate_configuration.py"))["page"]()
    current = (DOCS / "configuration.md").read_text(encoding="utf-8") == page
    assert current, "docs/configuration.md is stale: run `.venv/bin/python docs/generate_configuration.py`"
