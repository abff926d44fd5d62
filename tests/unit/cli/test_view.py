"""What a person reads while a run goes on."""

import io
from pathlib import Path

from rich.console import Console

from agentrl.cli.view import LineView, LiveView, make_view, trainer_busy
from agentrl.rollout.observer import BatchEvent, EpisodeEvent, EvaluationEvent, StepEvent
from agentrl.runtime.config import RunConfig
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.observe import Load, RunObserver

BATCH = BatchEvent(
    number=1,
    first_step=3,
    last_step=3,
    policy_version=2,
    groups=16,
    dropped_groups=4,
    episodes=96,
    reward=0.625,
    trained_tokens=1000,
    masked_tokens=7,
    staleness_max=2,
    staleness_mean=1.25,
)
STEP = StepEvent(step=3, steps=10, metrics={"train_s": 1.0, "read_s": 0.5, "wait_s": 0.5})
EVALUATION = EvaluationEvent(evaluation=0, step=0, reward=0.25, stderr=0.03, episodes=200, failed=1, versions=(0, 0))
LOAD = Load(engine_busy=0.5, sampled_per_s=1234.0, running=64, waiting=3, served_version=2, published_version=2)


def tell(view: RunObserver) -> None:
    view.stage("running")
    view.evaluation(EVALUATION)
    view.load(LOAD)
    view.batch(BATCH)
    view.episode(EpisodeEvent(episode="e", split="train", task_id="t", worker="w", placements={"root": 1, "forked:tools_changed": 2}))
    view.step(STEP)


def test_lines_say_step_reward_staleness_and_who_is_busy() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    config = RunConfig(env={"name": "x"})
    with make_view(config, RunFolder(Path("runs/x")), console) as view:
        assert isinstance(view, LineView), "a file is no terminal"
        tell(view)
    text = out.getvalue()
    assert "held out at step 0: reward 0.250 ± 0.030 over 200 episodes, 1 failed" in text
    assert "step 3/10  reward 0.625  dropped 4/16  staleness 1.2 (max 2)  busy engine 50% trainer 75%  1234 tok/s" in text


def test_the_live_panel_shows_the_same() -> None:
    view = LiveView(RunConfig(env={"name": "x"}), RunFolder(Path("runs/x")))
    tell(view)
    console = Console(file=io.StringIO(), width=160, record=True)
    console.print(view.render())
    text = console.export_text()
    for part in ("0.250 ± 0.030 at step 0", "step 3/", "groups 12/16", "max 2", "masked tokens 7", "engine 50%", "forks 2"):
        assert part in text


def test_busy_is_what_is_not_waiting() -> None:
    assert trainer_busy(STEP) == 0.75
    assert trainer_busy(StepEvent(step=1, steps=1, metrics={})) == 0.0
