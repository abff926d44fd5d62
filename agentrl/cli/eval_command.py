"""`agentrl eval RUN|MODEL|URL`: held-out tasks, once; with --json, one object on the last line."""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec

from agentrl.cli.options import Options
from agentrl.cli.subject import SERVED_MODEL, configured, is_run, need_env
from agentrl.cli.view import Terminal, evaluation_line, make_view
from agentrl.errors import EnvError
from agentrl.rollout.evaluation import EvaluationResult
from agentrl.rollout.observer import EpisodeEvent
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.observe import Everyone, RunObserver
from agentrl.runtime.run import evaluate

EPILOG = "further options are configuration keys, such as --eval.tasks 100"


def run(words: Sequence[str]) -> int:
    options = Options("agentrl eval", "evaluate a run, a model or a URL on held-out tasks", epilog=EPILOG)
    options.add_argument(
        "subject", help="a run; a model: tiny, smollm2, a Hugging Face name or folder; or the URL of an OpenAI-compatible endpoint"
    )
    options.add_argument("--served-model", help=SERVED_MODEL)
    options.add_argument("--json", action="store_true", help="one JSON object on the last line")
    asked, rest = options.parse_known_args(list(words))
    if not is_run(asked.subject):
        need_env(rest)
    config, checkpoints = configured(asked.subject, rest, served_model=asked.served_model)
    console = Terminal(stderr=asked.json)
    with tempfile.TemporaryDirectory(prefix="agentrl-eval-") as scratch:
        folder = RunFolder.create("eval", runs=Path(scratch))
        with make_view(config, folder, console) as view:
            failures = Failures()
            result = anyio.run(partial(evaluate, config, folder, Everyone([view, failures]), checkpoints=checkpoints))
    if not result.event.episodes:
        raise EnvError(f"none of {result.event.failed} episodes earned a reward; the last one that failed: {failures.last or 'none did'}")
    if asked.json:
        sys.stdout.buffer.write(msgspec.json.encode(report(config.env_name, result)) + b"\n")
    else:
        console.print(evaluation_line(result.event), highlight=False)
    return 0


class Failures(RunObserver):
    """Remembers why an episode failed, for when all of them did."""

    def __init__(self) -> None:
        self.last = ""

    def episode(self, event: EpisodeEvent) -> None:
        if event.reason:
            self.last = f"{event.reason}: {event.detail}"


def report(env: str, result: EvaluationResult) -> dict[str, object]:
    """What programs read. pass_at has each k up to the samples taken that is a power of two."""
    samples = max((len(task.rewards) for task in result.tasks), default=0)
    passes = {str(k): result.pass_at(k) for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples}
    event = result.event
    return {"env": env, "reward": event.reward, "stderr": event.stderr, "pass_at": passes, "episodes": event.episodes}
