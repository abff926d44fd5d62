"""`agentrl envs`: what is installed."""

from collections.abc import Sequence

from agentrl.cli.options import Options
from agentrl.env import installed, load
from agentrl.errors import AgentRLError


def run(words: Sequence[str]) -> int:
    Options("agentrl envs", "list the installed environments").parse_args(list(words))
    found = installed()
    if not found:
        print("no environments are installed; `agentrl train --env ./file.py:Class` takes one from a file")
    for name, point in found.items():
        try:
            about = (load(name).__doc__ or "").strip().partition("\n")[0]
        except AgentRLError as error:
            about = f"cannot be imported: {error}"
        print(f"{name:<16} {point.dist.version if point.dist else '':<8} {about}")
    return 0
