"""`agentrl try`: one episode, looked at: the transcript, the reward's parts, and the trained tokens in colour."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec
from rich.console import Console

from agentrl.cli.options import Options
from agentrl.cli.person import Keyboard
from agentrl.cli.subject import SERVED_MODEL, configured, is_run, need_env
from agentrl.cli.transcript import transcript
from agentrl.cli.view import Terminal, make_view
from agentrl.env import Calls, Env, Gold, OpenSession, Silent, Split, make
from agentrl.env.seed import derive
from agentrl.episode import ChatMessage, EpisodeKey, EpisodeRecord, Sealed
from agentrl.errors import ConfigError
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.rollout.client import Door
from agentrl.rollout.pages import first_tasks
from agentrl.rollout.run import LeasedEpisode, run_episode, served
from agentrl.rollout.sealer import GatewaySealer
from agentrl.rollout.wire import Lease
from agentrl.runtime.config import RunConfig, load_config
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.observe import RunObserver
from agentrl.runtime.reader import load_blob
from agentrl.runtime.run import prepared_for
from agentrl.runtime.service import model_service

MODELLESS = ("gold", "human", "silent")
DEADLINE_S = 24 * 3600.0


def run(words: Sequence[str]) -> int:
    options = Options("agentrl try", "run one episode and look at it", epilog="further options are configuration keys, such as --env.KEY")
    options.add_argument(
        "--model", default="tiny", help="tiny, smollm2, a folder, a run, a URL, gold (the env's answer), human (you), silent"
    )
    options.add_argument("--served-model", help=SERVED_MODEL)
    options.add_argument("--split", choices=["train", "eval"], default="eval")
    options.add_argument("--task", type=int, default=0, help="which one, counted from 0")
    options.add_argument("--messages", action="store_true", help="messages instead of tokens")
    asked, rest = options.parse_known_args(list(words))
    if not is_run(asked.model):
        need_env(rest)
    console = Terminal()
    if asked.model in MODELLESS:
        config = load_config(rest)
        env = make(config.env_name, config.env_settings)
        return anyio.run(_without_model, console, env, config, asked.model, asked.split, asked.task)
    config, checkpoints = configured(asked.model, rest, served_model=asked.served_model)
    with tempfile.TemporaryDirectory(prefix="agentrl-try-") as scratch:
        folder = RunFolder.create("try", runs=Path(scratch))
        with make_view(config, folder, console) as view:
            sealed = anyio.run(partial(_with_model, config, folder, view, asked.split, asked.task, checkpoints=checkpoints))
        turns = load_blob(folder.root / sealed.handle)
        tokenizer = Tokenizer.from_folder(folder.root) if folder.tokenizer.is_file() and not asked.messages else None
        for part in transcript(*turns, tokenizer):
            console.print(part)
    return int(turns[0].terminal == "error")


async def _without_model(console: Console, env: Env, config: RunConfig, model: str, split: Split, index: int) -> int:
    doors: dict[str, OpenSession] = {"gold": Gold(env), "human": Keyboard(console), "silent": Silent()}
    lease, calls = await _lease(env, config, split, index), Calls()
    async with served(env, calls):
        episode = LeasedEpisode(env, lease, doors[model], calls=calls)
        record = await episode.run()
    runs = episode.root.children if episode.root is not None and model != "human" else ()
    said = [f"{message.role}: {text_of(message)}" for run in runs for message in run.messages]
    for part in [*said, *summary(record)]:
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    return int(record.terminal == "error")


def text_of(message: ChatMessage) -> str:
    return message.content + "".join(f" → {call.name}({call.arguments})" for call in message.tool_calls)


async def _with_model(
    config: RunConfig, folder: RunFolder, view: RunObserver, split: Split, index: int, *, checkpoints: Path | None
) -> Sealed:
    env = make(config.env_name, config.env_settings)
    lease = await _lease(env, config, split, index)
    prepared = await prepared_for(config, folder, view, checkpoints=checkpoints)
    async with (
        model_service(config, folder, prepared, view, policy_version=0) as service,
        Door(service.gateway, token=service.token, sampling=config.sampling) as door,
        GatewaySealer(service.gateway, token=service.token) as sealer,
    ):
        view.stage("running", "one episode")
        calls = Calls()
        async with served(env, calls):
            return await sealer.seal(await run_episode(env, lease, door, calls=calls))


async def _lease(env: Env, config: RunConfig, split: Split, index: int) -> Lease:
    """Of the split's task number `index`, with the seeds that a run of this seed would give it."""
    tasks = await first_tasks(env, split, index + 1)
    if index >= len(tasks):
        raise ConfigError(f"--task {index}: the {split} split of {env.name} has {len(tasks)} tasks")
    task = tasks[index]
    return Lease(
        id="try",
        episode="try",
        key=EpisodeKey(epoch=0, task_id=task.id, member=0),
        split=split,
        task=msgspec.to_builtins(task),
        group_seed=derive(config.seed, task.id),
        seed=derive(config.seed, task.id, 0),
        deadline_s=DEADLINE_S,
    )


def summary(record: EpisodeRecord) -> list[str]:
    """Of an episode that no gateway wrote down."""
    out = [f"task {record.key.task_id} of {record.env} {record.env_version}: {record.terminal}"]
    out += [f"tool {call.name}({call.arguments}) → {call.error or call.result}" for call in record.tool_calls]
    out += [f"error in {error.where}: {error.kind}: {error.message}" for error in record.errors]
    parts = "  ".join(f"{name} {value:g}" for name, value in {**record.rewards, **record.metrics}.items())
    return [*out, f"reward {'none' if record.reward is None else f'{record.reward:g}'}  {parts}".rstrip()]
