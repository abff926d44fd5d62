"""`agentrl show RUN EPISODE`: one episode, its tokens coloured by what became of them."""

import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console

from agentrl.cli.options import Options
from agentrl.cli.transcript import transcript
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.runtime.folder import RunFolder
from agentrl.runtime.reader import load


def run(words: Sequence[str]) -> int:
    options = Options("agentrl show", "show one episode of a run")
    options.add_argument("run")
    options.add_argument("episode", help="its id, or enough of the id's start")
    options.add_argument("--messages", action="store_true", help="messages instead of tokens")
    options.add_argument("--json", action="store_true", help="the record, and what is known of each turn but its tokens")
    asked = options.parse_args(list(words))
    folder = RunFolder.open(asked.run)
    record, turns = load(folder, asked.episode)
    if asked.json:
        of_turns = [
            {
                "id": turn.id,
                "agent_run": turn.agent_run,
                "parent": turn.parent,
                "placement": turn.placement,
                "prompt_tokens": len(turn.prompt_ids),
                "completion_tokens": len(turn.completion_ids),
                "trainable_tokens": int(turn.mask.sum()),
                "spans": turn.spans,
                "finish_reason": turn.finish_reason,
                "messages": turn.messages,
                "reply": turn.reply,
            }
            for turn in turns
        ]
        sys.stdout.buffer.write(msgspec.json.encode({"record": record, "turns": of_turns}) + b"\n")
        return 0
    tokenizer = Tokenizer.from_folder(folder.root) if folder.tokenizer.is_file() and not asked.messages else None
    console = Console()
    for part in transcript(record, turns, tokenizer):
        console.print(part)
    return 0
