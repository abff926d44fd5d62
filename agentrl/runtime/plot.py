"""The reward plot: held-out reward with its standard error, training reward, and the control that a policy must beat to have learned."""

from pathlib import Path

from agentrl.runtime.metrics import read_metrics, standing


def plot_rewards(metrics: Path, png: Path, *, title: str) -> None:
    """Draw `png` from a run's metrics. Does nothing before the first evaluation."""
    lines = list(read_metrics(metrics))
    evals = [line for line in standing(lines, "eval") if line["reward"] is not None]
    steps = [line for line in standing(lines, "step") if line.get("reward") is not None]
    control = next((line["reward"] for line in lines if line["kind"] == "control"), None)
    if not evals:
        return
    # Imported here: matplotlib takes a second to load and only the end of a run needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if steps:
        axes.plot([s["step"] for s in steps], [s["reward"] for s in steps], color="0.75", linewidth=1, label="training groups")
    axes.errorbar(
        [e["step"] for e in evals],
        [e["reward"] for e in evals],
        yerr=[e["stderr"] for e in evals],
        marker="o",
        capsize=3,
        label="held out ± standard error",
    )
    if control is not None:
        axes.axhline(control, color="tab:red", linestyle="--", linewidth=1, label="control: without the skill")
    axes.set(xlabel="optimizer step", ylabel="mean reward", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    # Written whole, then renamed: a viewer that reloads the file never sees half a picture.
    draft = png.with_suffix(".tmp.png")
    figure.savefig(draft)
    draft.replace(png)
