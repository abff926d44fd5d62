"""The documentation is executed: Python snippets run, commands exist, links resolve, and the README stays short.

A ```python block runs, in file order, in one namespace and an empty folder; ```python not-run is shown only. In a ```sh block each line
that starts with `agentrl` must name a command, and a `train` line must resolve (it is run with --dry-run); each `make` line must name a
target.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("envs/*/*.md")])
FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def fences(page: Path, language: str) -> list[str]:
    return [match["body"] for match in FENCE.finditer(page.read_text(encoding="utf-8")) if match["language"].strip() == language]


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_resolve(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in LINK.finditer(prose):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file = (page.parent / target) if target else page
        assert file.exists(), f"{ids(page)} links to {match['target']}, which does not exist"
        if anchor:
            assert anchor in anchors(file), f"{ids(page)} links to {match['target']}, which has no such heading"


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python")], ids=ids)
def test_python_snippets_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "snippets.py"
    script.write_text("\n".join(fences(page, "python")), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def commands() -> list[tuple[str, str]]:
    return [(ids(page), line.split(" #")[0].strip()) for page in PAGES for body in fences(page, "sh") for line in body.splitlines()]


@pytest.mark.parametrize(("page", "line"), [(p, c) for p, c in commands() if c.startswith("agentrl ")])
def test_commands_exist(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    words = [*words, "--dry-run"] if words[0] == "train" else [words[0], "--help"]
    done = subprocess.run(
        [sys.executable, "-m", "agentrl.cli.main", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{page}: {line}\n{done.stderr}"


@pytest.mark.parametrize(("page", "line"), [(p, c) for p, c in commands() if c.startswith("make ")])
def test_make_targets_exist(page: str, line: str) -> None:
    target = next(word for word in line.split()[1:] if "=" not in word)
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), f"{page}: {line}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
