"""The whole program, all its processes, on a model that is made in seconds and knows nothing: counts and proofs, not rewards.

The environment comes from a file and pays by a coin that differs between answers, so that there is always something to train.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agentrl.env import make
from agentrl.gateway.store import EpisodeStore
from agentrl.ledger import read_journal
from agentrl.ledger.audit import audit
from agentrl.ledger.entry import Resumed, Trained
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.metrics import read_metrics
from agentrl.runtime.reader import episodes, load
from agentrl.train.tiny.prepare import prepare_tiny
from agentrl.train.tiny.recipe import Recipe, WarmStart

WAIT_S = 240.0
SMALL = [
    "--train.groups_per_step",
    "2",
    "--train.group_size",
    "4",
    "--train.save_every",
    "2",
    "--eval.tasks",
    "8",
    "--rollout.concurrency",
    "16",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(warm_start=WarmStart(steps=30))
    return prepare_tiny(make("countdown", {}), seed=0, cache_dir=tmp_path_factory.mktemp("models"), recipe=recipe)


COIN = '''
import zlib
from agentrl import Agent, Env, Episode, Limits, Task

print("an environment may print at its import")

class Coin(Env):
    """Pays by chance."""
    agent = Agent(limits=Limits(turns=1, tokens_per_turn=24))

    def tasks(self, split):
        for number in range(100000):
            yield Task(prompt=f"{split} {number}")

    async def reward(self, task: Task, ep: Episode) -> float:
        return float(zlib.crc32(ep.text.encode()) % 2)
'''


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "agentrl.cli.main", *words]


def agentrl(cwd: Path, *words: str, status: int = 0, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, timeout=WAIT_S, check=False, preexec_fn=before)
    assert done.returncode == status, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def train_words(model: Path, name: str, steps: int) -> list[str]:
    return [
        "train",
        "--env",
        "./coin.py:Coin",
        "--model",
        str(model),
        "--name",
        name,
        "--train.lr",
        "1e-4",
        "--train.steps",
        str(steps),
        *SMALL,
    ]


def descendants_of(pid: int) -> list[int]:
    """Every process whose session was started below `pid`, by walking /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    found, frontier = [], [pid]
    while frontier:
        at = frontier.pop()
        children = [child for child, parent in parents.items() if parent == at]
        found += children
        frontier += children
    return found


def until(holds: "Iterator[bool]") -> None:
    """Poll another process's files until they say so; bounded."""
    deadline = time.monotonic() + WAIT_S
    for held in holds:
        if held:
            return
        assert time.monotonic() < deadline, "the run did not get there in time"
        time.sleep(0.1)


def test_a_run_trains_evaluates_checkpoints_and_proves_itself(model: Path, tmp_path: Path) -> None:
    (tmp_path / "coin.py").write_text(COIN)
    done = agentrl(tmp_path, *train_words(model, "first", 4))
    assert "first: finished" in done.stdout
    folder = RunFolder(tmp_path / "runs" / "first")
    report = audit(folder.root)
    assert report.problems == ()
    assert (report.steps, report.ended) == (4, "finished")
    lines = list(read_metrics(folder.metrics))
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [0, 4]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2, 3, 4]
    assert folder.plot.stat().st_size > 1000
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step-000002", "step-000004"]
    assert not list(folder.journal.iterdir()), "every turn lies in a sealed episode"
    scored = [line for line in episodes(folder) if line.handle]
    record, turns = load(folder, scored[0].id)
    assert record.id == scored[0].id
    assert sum(len(turn.completion_ids) for turn in turns) == scored[0].sampled_tokens

    shown = agentrl(tmp_path, "show", "first", scored[0].id).stdout
    assert "<|im_start|>assistant" in shown
    audited = msgspec.json.decode(agentrl(tmp_path, "audit", "first", "--json").stdout)
    assert audited["clean"] is True
    assert audited["blobs_checked"] > 0
    evaluated = msgspec.json.decode(agentrl(tmp_path, "eval", "first", "--json", "--eval.tasks", "8").stdout.splitlines()[-1])
    assert set(evaluated) == {"env", "reward", "stderr", "pass_at", "episodes"}
    assert evaluated["episodes"] == 8

    again = agentrl(tmp_path, *train_words(model, "first", 4), status=2)
    assert "agentrl train --resume first" in again.stderr


def test_a_killed_run_leaves_no_process_and_resumes_from_its_checkpoint(model: Path, tmp_path: Path) -> None:
    (tmp_path / "coin.py").write_text(COIN)
    folder = RunFolder(tmp_path / "runs" / "killed")
    with (tmp_path / "out").open("wb") as out:
        running = subprocess.Popen(command(*train_words(model, "killed", 400)), cwd=tmp_path, stdout=out, stderr=out)
    try:
        until(_checkpointed(folder, running))
        refused = agentrl(tmp_path, "train", "--resume", "killed", status=1)
        assert "is in use by process" in refused.stderr
        below = descendants_of(running.pid)
        assert len(below) >= 4, "engine, gateway, trainer and a worker"
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    until(_all_dead(below))
    before = [r.entry.step for r in read_journal(folder.ledger) if isinstance(r.entry, Trained)]

    whole = {path.name for path in folder.checkpoints.glob("step-*")}
    last = before[-1] + 2
    folder.config.write_text(folder.config.read_text().replace("\nsteps = 400\n", f"\nsteps = {last}\n"))
    agentrl(tmp_path, "train", "--resume", "killed")
    entries = [recorded.entry for recorded in read_journal(folder.ledger)]
    resumed = next(entry for entry in entries if isinstance(entry, Resumed))
    assert f"step-{resumed.step:06d}" in whole, "it went on from a checkpoint that the dead run left"
    report = audit(folder.root)
    assert report.problems == ()
    assert report.ended == "finished"
    assert (report.resumes, report.steps) == (1, last)


def test_a_frozen_worker_is_killed_its_episode_blamed_and_the_others_run_again(model: Path, tmp_path: Path) -> None:
    trap = "        while task.prompt == 'train 2' and ep.key.member == 0:\n            pass\n        return"
    (tmp_path / "coin.py").write_text(COIN.replace("        return", trap))
    limits = ["--rollout.frozen_after_s", "2", "--rollout.lost_after_s", "20"]
    agentrl(tmp_path, *train_words(model, "frozen", 3), *limits)
    folder = RunFolder(tmp_path / "runs" / "frozen")
    report = audit(folder.root)
    assert report.problems == ()
    assert report.ended == "finished"
    frozen = [line for line in episodes(folder) if line.state == "rejected frozen"]
    assert {line.key.member for line in frozen} == {0}
    events = [line for line in read_metrics(folder.metrics) if line["kind"] == "worker"]
    assert events[0]["what"] == "frozen"
    assert "coin.py" in events[0]["detail"], "the stack names the line that holds the loop"


def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_space(model: Path, tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        (disk.folder / "coin.py").write_text(COIN)
        failed = agentrl(disk.folder, *train_words(model, "full", 400), status=1, before=disk.limit)
        assert re.search(r"free (disk )?space", failed.stderr), failed.stderr
        assert "Traceback" not in failed.stderr.partition("  | ")[0]
        folder = RunFolder(disk.folder / "runs" / "full")
        assert audit(folder.root).problems == ()
        disk.make_room()

        last = max((r.entry.step for r in read_journal(folder.ledger) if isinstance(r.entry, Trained)), default=0) + 2
        folder.config.write_text(folder.config.read_text().replace("\nsteps = 400\n", f"\nsteps = {last}\n"))
        agentrl(disk.folder, "train", "--resume", "full")
        report = audit(folder.root, open_blob=EpisodeStore(str(folder.root)).open)
        assert report.problems == ()
        assert (report.ended, report.steps) == ("finished", last)
        assert report.blobs_checked > 0
        steps = [line["step"] for line in read_metrics(folder.metrics) if line["kind"] == "step"]
        assert set(steps) == set(range(1, last + 1))


class SmallDisk:
    """A folder with little room: a tmpfs where one may be mounted, else one whose files may not grow to a checkpoint's size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._mounted = self._mount("size=2600k")

    def __enter__(self) -> "SmallDisk":
        return self

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def limit(self) -> None:
        """In the run's process, before it starts."""
        if not self._mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, 900_000))

    def make_room(self) -> None:
        if self._mounted:
            assert self._mount("remount,size=200m")

    def _mount(self, options: str) -> bool:
        mount = shutil.which("mount")
        words = [str(mount), "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        return mount is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


def _checkpointed(folder: RunFolder, running: "subprocess.Popen[bytes]") -> Iterator[bool]:
    while True:
        assert running.poll() is None, "the run ended by itself"
        yield any(path.name.startswith("step-") for path in folder.checkpoints.glob("*")) if folder.checkpoints.exists() else False


def _all_dead(pids: list[int]) -> Iterator[bool]:
    while True:
        yield not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
