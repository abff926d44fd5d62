"""No child outlives its run, and a failure says why."""

import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from agentrl.errors import ProcessError
from agentrl.runtime.process import child
from tests.unit.runtime.child_fixture import Ready, Spec

MODULE = "tests.unit.runtime.child_fixture"


def alive(pid: int) -> bool:
    """Running, and not a zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_dead(pid: int) -> None:
    with anyio.fail_after(20):
        while alive(pid):  # noqa: ASYNC110 (another process's end has no event to await)
            await anyio.sleep(0.02)


async def test_a_child_and_its_descendants_end_with_the_context(tmp_path: Path) -> None:
    async with child("test", MODULE, Spec("run"), log=tmp_path / "log") as process:
        ready = await process.ready(Ready, within_s=30)
        assert alive(ready.pid)
        assert alive(ready.grandchild)
    await until_dead(ready.pid)
    await until_dead(ready.grandchild)


async def test_what_a_child_prints_is_its_log_and_never_taken_for_its_word(tmp_path: Path) -> None:
    async with child("test", MODULE, Spec("chatty", str(tmp_path)), log=tmp_path / "log") as process:
        await process.ready(Ready, within_s=30)
        with anyio.fail_after(20):
            while not (tmp_path / "done").exists():  # noqa: ASYNC110 (another process's work has no event to await)
                await anyio.sleep(0.02)
    log = (tmp_path / "log").read_text()
    assert "printed at import" in log
    assert "printed by a program" in log


async def test_a_death_before_ready_shows_the_log(tmp_path: Path) -> None:
    async with child("test", MODULE, Spec("die"), log=tmp_path / "log") as process:
        with pytest.raises(ProcessError, match=r"(?s)test process ended with status 3.*the cause, in the last line.*full log: "):
            await process.ready(Ready, within_s=30)


async def test_silence_is_an_error_after_the_deadline(tmp_path: Path) -> None:
    async with child("test", MODULE, Spec("silent"), log=tmp_path / "log") as process:
        with pytest.raises(ProcessError, match="was not ready after 0 s"):
            await process.ready(Ready, within_s=0.2)


def test_a_killed_parent_takes_its_child_its_descendants_and_their_scratch_along(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen([sys.executable, "-c", PARENT, MODULE, str(scratch)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        ready = msgspec.json.decode(parent.stdout.readline(), type=Ready)
        parent.kill()
    anyio.run(until_dead, ready.pid)
    anyio.run(until_dead, ready.grandchild)
    assert not scratch.exists()


PARENT = """
import json, subprocess, sys
p = subprocess.Popen([sys.executable, "-m", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
p.stdin.write(json.dumps({"do": "run", "scratch": sys.argv[2]}).encode() + b"\\n"); p.stdin.flush()
sys.stdout.buffer.write(p.stdout.readline()); sys.stdout.flush()
p.wait()
"""
