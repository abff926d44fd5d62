"""`agentrl eval RUN|MODEL`: held-out tasks, once; with --json, one object on the last line."""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec
from rich.console import Console

from agentrl.cli.options import Options
from agentrl.cli.subject import configured, is_run, need_env
from agentrl.cli.view import evaluation_line, make_view
from agentrl.rollout.evaluation import EvaluationResult
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.run import evaluate

EPILOG = "further options are configuration keys, such as --eval.tasks 100"


def run(words: Sequence[str]) -> int:
    options = Options("agentrl eval", "evaluate a run or a model on held-out tasks", epilog=EPILOG)
    options.add_argument("subject", help="a run, or a model: tiny, smollm2, a Hugging Face name or folder")
    options.add_argument("--json", action="store_true", help="one JSON object on the last line")
    asked, rest = options.parse_known_args(list(words))
    if not is_run(asked.subject):
        need_env(rest)
    config, checkpoints = configured(asked.subject, rest)
    console = Console(stderr=asked.json)
    with tempfile.TemporaryDirectory(prefix="agentrl-eval-") as scratch:
        folder = RunFolder.create("eval", runs=Path(scratch))
        with make_view(config, folder, console) as view:
            result = anyio.run(partial(evaluate, config, folder, view, checkpoints=checkpoints))
    if asked.json:
        sys.stdout.buffer.write(msgspec.json.encode(report(config.env_name, result)) + b"\n")
    else:
        console.print(evaluation_line(result.event), highlight=False)
    return 0


def report(env: str, result: EvaluationResult) -> dict[str, object]:
    """What programs read. pass_at has each k up to the samples taken that is a power of two."""
    samples = max((len(task.rewards) for task in result.tasks), default=0)
    passes = {str(k): result.pass_at(k) for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples}
    event = result.event
    return {"env": env, "reward": event.reward, "stderr": event.stderr, "pass_at": passes, "episodes": event.episodes}
