"""`agentrl episodes RUN`: a table of what became of every episode."""

import sys
from collections.abc import Sequence

import msgspec

from agentrl.cli.options import Options
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.reader import EpisodeLine, episodes


def run(words: Sequence[str]) -> int:
    options = Options("agentrl episodes", "list a run's episodes")
    options.add_argument("run")
    options.add_argument("--split", choices=["train", "eval"])
    options.add_argument("--state", help="only episodes whose state starts so: issued, running, done, scored, trained, rejected")
    options.add_argument("--last", type=int, default=40, help="how many, from the end (default 40; 0: all)")
    options.add_argument("--json", action="store_true", help="one JSON object a line")
    asked = options.parse_args(list(words))
    found = [
        line
        for line in episodes(RunFolder.open(asked.run))
        if (asked.split is None or line.split == asked.split) and line.state.startswith(asked.state or "")
    ]
    shown = found[-asked.last :] if asked.last else found
    if asked.json:
        for line in shown:
            sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        return 0
    print(
        f"{'episode':<20} {'split':<6} {'task':<14} {'member':>6}  {'state':<22} {'reward':>7} {'tokens':>7}  {'terminal':<9} {'step':>5}"
    )
    for line in shown:
        print(row(line))
    if len(shown) < len(found):
        print(f"({len(found) - len(shown)} earlier ones; --last 0 shows all)")
    return 0


def row(line: EpisodeLine) -> str:
    reward = "" if line.reward is None else f"{line.reward:.3f}"
    return (
        f"{line.id[:20]:<20} {line.split:<6} {line.key.task_id[:14]:<14} {line.key.member:>6}  {line.state[:22]:<22} "
        f"{reward:>7} {line.sampled_tokens:>7}  {line.terminal:<9} {line.step if line.step is not None else '':>5}"
    )
