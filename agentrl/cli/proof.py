"""The end of a run: what it can prove of itself, and what to do next."""

import shlex
from collections import Counter

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from agentrl.cli.audit_command import verdict
from agentrl.cli.view import score
from agentrl.errors import AgentRLError
from agentrl.ledger.audit import audit
from agentrl.runtime.config import RunConfig
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.metrics import read_metrics, standing
from agentrl.runtime.plot import plot_rewards
from agentrl.runtime.record import Recorder


def print_proof(console: Console, config: RunConfig, folder: RunFolder, recorder: Recorder, *, reason: str) -> None:
    """Audit the run, draw its plot, print the box and the next three commands."""
    plot = _plotted(config, folder)
    report = audit(folder.root)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    table.add_column()
    if held_out := _held_out(folder):
        table.add_row("held-out reward", held_out)
    table.add_row("audit", verdict(report))
    table.add_row("forks", by_reason(recorder.forks))
    table.add_row("left out", f"agent runs dropped {by_reason(recorder.dropped)}; attempts rejected {by_reason(recorder.rejected)}")
    table.add_row("largest |π - μ| at staleness 0", f"{recorder.gap_at_0_max:.2g} nats")
    table.add_row("staleness max", f"{recorder.staleness_max} versions")
    table.add_row(
        "tokens",
        f"{recorder.trained_tokens} trained, {recorder.masked_tokens} masked as too old, untrainable {by_reason(recorder.untrainable)}",
    )
    if recorder.wishes:
        table.add_row("replaced sampling wishes", by_reason(Counter(recorder.wishes)))
    if plot:
        table.add_row("plot", plot)
    console.print(Panel(table, title=f"{folder.name}: {reason}", title_align="left", expand=False))
    if report.steps and not report.trained_tokens:
        console.print("NOTHING WAS TRAINED: every agent run was left out; `agentrl episodes` shows why, metrics.jsonl has the details")
    name = shlex.quote(folder.name)
    console.print(f"next:  agentrl episodes {name}\n       agentrl audit {name}\n       agentrl eval {name}", highlight=False)


def _held_out(folder: RunFolder) -> str:
    """From the first evaluation to the last, those before a resume included."""
    try:
        evaluations = standing(read_metrics(folder.metrics), "eval")
    except AgentRLError as cause:
        return f"unknown: {cause}"
    ends = evaluations[:1] + evaluations[1:][-1:]
    return " → ".join(f"{score(at['reward'], at['stderr'])} at step {at['step']}" for at in ends)


def _plotted(config: RunConfig, folder: RunFolder) -> str:
    """Where the plot lies, or why it was not drawn: a run that is made is not spoilt by its picture."""
    try:
        plot_rewards(folder.metrics, folder.plot, title=f"{config.env_name} · {config.model.name} · seed {config.seed}")
    except (AgentRLError, OSError) as cause:
        return f"not drawn: {cause}"
    return str(folder.plot) if folder.plot.exists() else ""


def by_reason(counts: Counter[str]) -> str:
    """The sum, and what it is made of: "3 (lost 2, error 1)"."""
    parts = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return f"{counts.total()} ({parts})" if parts else "0"
