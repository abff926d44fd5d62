"""What a person sees while a run goes on: a live panel on a terminal, one line an event elsewhere."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.rollout.observer import BatchEvent, DropEvent, EpisodeEvent, EvaluationEvent, StepEvent, WorkerEvent
from agentrl.runtime.config import RunConfig
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.observe import Load, RunObserver

REFRESH_PER_S = 4


@contextmanager
def make_view(config: RunConfig, folder: RunFolder, console: Console) -> Iterator[RunObserver]:
    """A live panel if the console is a terminal, else lines."""
    if not console.is_terminal:
        yield LineView(console)
        return
    view = LiveView(config, folder)
    with Live(get_renderable=view.render, console=console, refresh_per_second=REFRESH_PER_S, transient=True) as live:
        view.console = live.console
        yield view


class Terminal(Console):
    """A console whose reader may go (`| head`): the run goes on and is silent, since all it says is in its folder too."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class LineView(RunObserver):
    """One line a step, an evaluation, a note."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._batch: BatchEvent | None = None
        self._load: Load | None = None
        self._stage = ""
        self._began = time.monotonic()

    def stage(self, name: str, detail: str = "", fraction: float | None = None) -> None:
        line = f"{name}{': ' + detail if detail else ''}"
        if line != self._stage and fraction is None:
            self._stage = line
            self._say(line)

    def note(self, text: str) -> None:
        self._say(text)

    def batch(self, event: BatchEvent) -> None:
        self._batch = event

    def load(self, load: Load) -> None:
        self._load = load

    def step(self, event: StepEvent) -> None:
        batch, load = self._batch, self._load
        reward = f"reward {batch.reward:.3f}  dropped {batch.dropped_groups}/{batch.groups}  " if batch and batch.reward is not None else ""
        stale = f"staleness {batch.staleness_mean:.1f} (max {batch.staleness_max})  " if batch else ""
        busy = f"busy engine {load.engine_busy:.0%} trainer {trainer_busy(event):.0%}  {load.sampled_per_s:.0f} tok/s" if load else ""
        self._say(f"step {event.step}/{event.steps}  {reward}{stale}{busy}")

    def evaluation(self, event: EvaluationEvent) -> None:
        self._say(evaluation_line(event))

    def worker(self, event: WorkerEvent) -> None:
        self._say(f"worker {event.worker} is {event.what}; its episodes are run again elsewhere")

    def _say(self, text: str) -> None:
        self._console.print(f"[{clock(time.monotonic() - self._began)}] {text}", markup=False, highlight=False, soft_wrap=True)


class LiveView(RunObserver):
    """A panel that is drawn anew a few times a second."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.console: Console | None = None
        self._title = f"agentrl · {config.env_name} · {config.model.name} · {folder.root}"
        self._steps = config.train.steps
        self._began = time.monotonic()
        self._stage, self._detail, self._fraction = "starting", "", None
        self._step = 0
        self._first_step: tuple[int, float] | None = None
        self._batch: BatchEvent | None = None
        self._last: StepEvent | None = None
        self._load: Load | None = None
        self._evaluations: list[EvaluationEvent] = []
        self._counts: Counter[str] = Counter()

    def stage(self, name: str, detail: str = "", fraction: float | None = None) -> None:
        self._stage, self._detail, self._fraction = name, detail, fraction  # type: ignore[assignment]

    def note(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, markup=False)

    def batch(self, event: BatchEvent) -> None:
        self._batch = event
        self._counts["dropped groups"] += event.dropped_groups
        self._counts["masked tokens"] += event.masked_tokens

    def step(self, event: StepEvent) -> None:
        self._step, self._last = event.step, event
        self._first_step = self._first_step or (event.step, time.monotonic())

    def load(self, load: Load) -> None:
        self._load = load

    def evaluation(self, event: EvaluationEvent) -> None:
        self._evaluations.append(event)
        self.note(evaluation_line(event))

    def episode(self, event: EpisodeEvent) -> None:
        self._counts["episodes"] += not event.reason
        self._counts["rejected"] += bool(event.reason)
        self._counts["forks"] += sum(count for name, count in event.placements.items() if name.startswith("forked"))

    def drop(self, event: DropEvent) -> None:
        self._counts["dropped runs"] += 1

    def worker(self, event: WorkerEvent) -> None:
        self.note(f"worker {event.worker} is {event.what}; its episodes are run again elsewhere")

    def render(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right")
        table.add_column()
        for name, value in self._rows():
            table.add_row(name, value)
        done = self._step / self._steps if self._step else (self._fraction or 0.0)
        return Panel(Group(table, ProgressBar(total=1.0, completed=done)), title=Text(self._title), title_align="left")

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "stage", f"{self._stage} {self._detail}  {clock(time.monotonic() - self._began)}{self._left()}"
        if self._evaluations:
            first, last = self._evaluations[0], self._evaluations[-1]
            yield (
                "held out",
                f"{score(first.reward, first.stderr)} at step {first.step} → {score(last.reward, last.stderr)} at step {last.step}",
            )
        if self._batch is not None and self._last is not None:
            batch = self._batch
            kept = f"groups {batch.groups - batch.dropped_groups}/{batch.groups}"
            yield "training", f"step {self._step}/{self._steps}  reward {batch.reward or 0:.3f}  {kept}"
            yield "staleness", f"mean {batch.staleness_mean:.2f}  max {batch.staleness_max}  masked tokens {self._counts['masked tokens']}"
            yield "busy", f"engine {self._load.engine_busy if self._load else 0:.0%}  trainer {trainer_busy(self._last):.0%}"
        if self._load is not None:
            yield (
                "engine",
                f"{self._load.sampled_per_s:.0f} tokens/s  episodes in flight {self._load.running}  waiting {self._load.waiting}",
            )
        if self._counts:
            yield "counts", "  ".join(f"{name} {self._counts[name]}" for name in ("episodes", "forks", "dropped groups", "rejected"))

    def _left(self) -> str:
        if self._first_step is None or self._step == self._first_step[0]:
            return ""
        pace = (time.monotonic() - self._first_step[1]) / (self._step - self._first_step[0])
        return f"  about {(self._steps - self._step) * pace / 60:.1f} min left"


def trainer_busy(event: StepEvent) -> float:
    """Fraction of its time that the trainer did not wait for data."""
    work = event.metrics.get("train_s", 0.0) + event.metrics.get("read_s", 0.0)
    total = work + event.metrics.get("wait_s", 0.0)
    return work / total if total else 0.0


def score(reward: float | None, stderr: float) -> str:
    return "no reward" if reward is None else f"{reward:.3f} ± {stderr:.3f}"


def evaluation_line(event: EvaluationEvent) -> str:
    failed = f", {event.failed} failed" if event.failed else ""
    return f"held out at step {event.step}: reward {score(event.reward, event.stderr)} over {event.episodes} episodes{failed}"


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:d}:{int(seconds) % 60:02d}"
