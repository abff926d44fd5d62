"""The `agentrl` command: finds the subcommand, and prints errors made for people without a traceback.

Subcommands are imported only when called, so that `agentrl --help` answers at once.
"""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from agentrl.config import did_you_mean
from agentrl.errors import AgentRLError, ConfigError

COMMANDS = {
    "train": "train a policy on an environment",
    "eval": "evaluate a run, a model or a URL on held-out tasks",
    "try": "run one episode and look at it",
    "envs": "list the installed environments",
    "episodes": "list a run's episodes",
    "show": "show one episode of a run",
    "audit": "prove that a run lost and doubled nothing",
    "bench": "measure engine, gateway or trainer against a baseline",
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return f"usage: agentrl COMMAND [options]\n\n{lines}\n\n`agentrl COMMAND --help` says more. Start with: agentrl train --env countdown"


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 failed, 2 refused (the command or configuration is wrong), 130 interrupted."""
    rest = list(sys.argv[1:] if words is None else words)
    if not rest or rest[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0
    name = rest.pop(0)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal of another encoding cannot show costs a sign, not the command.
            stream.reconfigure(errors="backslashreplace")
    try:
        for word in rest:
            if not _is_text(word):
                raise ConfigError(f"the argument {word!r} is not UTF-8 text")
        if name not in COMMANDS:
            raise ConfigError(f"there is no command {name!r}.{did_you_mean(name, COMMANDS)}")
        command = importlib.import_module(f"agentrl.cli.{name}_command")
        status = int(command.run(rest))
        sys.stdout.flush()
        return status
    except ConfigError as error:
        print(f"agentrl: {error}", file=sys.stderr)
        return 2
    except AgentRLError as error:
        print(f"agentrl: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. What is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("agentrl: interrupted", file=sys.stderr)
        return 130


def _is_text(word: str) -> bool:
    """Bytes that are no UTF-8 come from the shell as lone surrogates, which nothing can write down."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
