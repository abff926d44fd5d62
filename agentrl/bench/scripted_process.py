"""Main of a scripted engine's process: it is no part of what the whole path costs, so it has a process of its own."""

import itertools
from pathlib import Path

import anyio
import msgspec

from agentrl.bench.reach import ANSWER
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.serve import serve
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.runtime.child import read_spec, tell
from agentrl.runtime.log import log_to_stderr
from agentrl.testing.model import END, START

MODULE = "agentrl.bench.scripted_process"
TURNS = 5
TRY = '<tool_call>\n{"name": "calc", "arguments": {"expression": "3+4*7"}}\n</tool_call>'


class ScriptedSpec(msgspec.Struct, frozen=True):
    model: str
    """Folder of the tokenizer."""
    address: str


class ScriptedReady(msgspec.Struct, frozen=True):
    address: str


async def run(spec: ScriptedSpec) -> None:
    """Calls `calc` TURNS - 1 times and then answers, right and wrong by turns."""
    tokenizer = Tokenizer.from_folder(Path(spec.model))
    attempt = tokenizer.encode(TRY)
    answers = itertools.cycle([tokenizer.encode(ANSWER), tokenizer.encode("3+7-4")])
    start = tokenizer.added[START]

    def script(prompt: list[int]) -> list[int]:
        # The system's and the user's message, two a turn, and the one that begins here.
        turn = (prompt.count(start) - 1) // 2
        return attempt if turn < TURNS else next(answers)

    engine = ScriptedEngine(script, eos_token_id=tokenizer.added[END])
    async with anyio.create_task_group() as tasks:
        tell(ScriptedReady(await tasks.start(serve, engine, spec.address)))


if __name__ == "__main__":
    log_to_stderr("scripted engine")
    anyio.run(run, read_spec(ScriptedSpec))
