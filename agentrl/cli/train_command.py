"""`agentrl train`: one configuration, from flags and a TOML file, to a run folder."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import tomli_w

from agentrl.cli.options import Options
from agentrl.cli.subject import with_key
from agentrl.env import make
from agentrl.errors import ConfigError
from agentrl.runtime.config import RunConfig, as_tree, load_config, with_env
from agentrl.runtime.folder import RunFolder

USAGE = """usage: agentrl train --env E [--model M] [--name N] [--seed S] [--config FILE.toml] [--dry-run] [--section.key value …]
       agentrl train --resume RUN

  --env E        an installed environment (agentrl envs), or ./file.py:Class; its settings are --env.KEY
  --model M      tiny (default), smollm2, or a Hugging Face name or folder
  --config FILE  TOML with the same keys as the flags; flags win
  --resume RUN   go on from the newest checkpoint of a run
  --dry-run      print the resolved configuration and stop

All keys: docs/configuration.md"""


def run(words: Sequence[str]) -> int:
    parser = Options("agentrl train", "train a policy on an environment", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--resume")
    parser.add_argument("--dry-run", action="store_true")
    own, rest = parser.parse_known_args(list(words))
    if own.help:
        print(USAGE)
        return 0
    if own.resume and (own.config or rest):
        raise ConfigError("--resume takes the run's own configuration; a changed one would be another run. Leave the other options out")
    folder = RunFolder.open(own.resume) if own.resume else None
    config = with_key(load_config(rest, toml=folder.config if folder else own.config))
    config.check_trainable()
    name = config.name or default_name(config)
    # An environment that cannot be made is refused before there is a folder.
    config = with_env(config, make(config.env_name, config.env_settings))
    if own.dry_run:
        print("\n".join(placement(config)) + "\n")
        print(tomli_w.dumps(as_tree(config)), end="")
        return 0
    if folder is None:
        folder = RunFolder.create(name)
        folder.configure(tomli_w.dumps(as_tree(config)))
    return _train(config, folder, resume=bool(own.resume))


def _train(config: RunConfig, folder: RunFolder, *, resume: bool) -> int:
    # Imported here: --help and --dry-run do without HTTP and consoles.
    from agentrl.cli.proof import print_proof
    from agentrl.cli.view import Terminal, make_view
    from agentrl.runtime.observe import Everyone
    from agentrl.runtime.record import Recorder
    from agentrl.runtime.run import train

    console = Terminal()
    recorder = Recorder(folder.metrics)
    try:
        with make_view(config, folder, console) as view:
            reason = anyio.run(partial(train, config, folder, Everyone([recorder, view]), resume=resume))
        recorder.end()
    except ConfigError:
        if not resume and not any(folder.episodes.iterdir()):
            # Refused before anything was rolled out: its name must not stay taken.
            shutil.rmtree(folder.root)
        raise
    finally:
        recorder.close()
    print_proof(console, config, folder, recorder, reason=reason)
    return 0


def placement(config: RunConfig) -> list[str]:
    """Which process runs where, as comments above the TOML."""
    engine, train, rollout = config.engine, config.train, config.rollout
    return [
        "# controller  this process",
        f"# engine      device {engine.device}, {engine.threads} thread(s), {engine.slots} sequences at once",
        f"# trainer     device {train.device}, {train.threads} thread(s)",
        f"# gateway     {config.gateway.host}",
        f"# workers     {rollout.workers}, each {rollout.concurrency} episodes at once",
    ]


def default_name(config: RunConfig) -> str:
    """Of environment, model and seed, and a number if that is taken."""
    words = [Path(config.env_name.split(":")[0]).stem, Path(config.model.name).name, f"s{config.seed}"]
    base = "-".join(word for word in words if word)
    taken = {path.parent.name for path in Path("runs").glob("*/config.toml")}
    return base if base not in taken else next(f"{base}-{n}" for n in range(2, 10_000) if f"{base}-{n}" not in taken)
