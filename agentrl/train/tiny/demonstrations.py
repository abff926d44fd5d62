"""Conversations that an environment shows, as text and as token ids."""

import itertools
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from agentrl.env import Env, Task
from agentrl.episode import ChatMessage
from agentrl.errors import ConfigError, EnvError
from agentrl.train.tiny.tokenizer import END, START


class Demonstrations:
    """An endless draw of conversations over an environment's training tasks."""

    def __init__(self, env: Env, *, tasks: int, rng: Random) -> None:
        """Raises ConfigError if the environment has none, EnvError if it has no tasks."""
        self._env = env
        self._tasks = _first_tasks(env, tasks)
        self._rng = rng
        self.tools = [{"type": "function", "function": msgspec.to_builtins(tool.spec)} for tool in env.tools(_main_tools(env))]
        if not self._tasks:
            raise EnvError(f"{env.name}: tasks('train') gave no tasks; check the env's data")
        if self._draw() is None:
            raise ConfigError(
                f"--model tiny learns from demonstrations, and {env.name} has none: choose a model that knows language, "
                "such as --model smollm2 or a Hugging Face name, or define demonstrations() in the environment"
            )

    def text(self, tokenizer: PreTrainedTokenizerFast) -> str:
        """One more conversation, rendered."""
        messages = None
        while messages is None:
            messages = self._draw()
        rendered: str = tokenizer.apply_chat_template([_wire(message) for message in messages], tools=self.tools or None, tokenize=False)
        return rendered

    def _draw(self) -> list[ChatMessage] | None:
        return self._env.demonstrations(self._rng.choice(self._tasks), self._rng)


class Encoder:
    """Rendered conversations to ids, with the tokens that the assistant wrote marked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._end = self._tokenizer.token_to_id(END)
        self._opening = np.array(self._tokenizer.encode(f"{START}assistant\n", add_special_tokens=False).ids)

    def __call__(self, texts: list[str]) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Per text (token ids, written), aligned. What is written runs from an assistant's opening to its `<|im_end|>`, included."""
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [(ids, self._written(ids)) for ids in (np.array(each.ids, dtype=np.int64) for each in encoded)]

    def _written(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        written = np.zeros(len(ids), dtype=np.bool_)
        width = len(self._opening)
        starts = np.flatnonzero((np.lib.stride_tricks.sliding_window_view(ids, width) == self._opening).all(axis=1)) + width
        ends = np.flatnonzero(ids == self._end)
        for start in starts:
            written[start : ends[np.searchsorted(ends, start)] + 1] = True
        return written


def _main_tools(env: Env) -> Any:
    return next(iter(env.agents.values())).tools


def _wire(message: ChatMessage) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls]
    return {"role": message.role, "content": message.content} | ({"tool_calls": calls} if calls else {})


def _first_tasks(env: Env, count: int) -> list[Task]:
    tasks = env.tasks("train")
    if isinstance(tasks, AsyncIterator):
        return anyio.run(_collect, tasks, count)
    return list(itertools.islice(tasks, count))


async def _collect(tasks: AsyncIterator[Task], count: int) -> list[Task]:
    found: list[Task] = []
    async for task in tasks:
        found.append(task)
        if len(found) == count:
            break
    return found


def batches(demonstrations: Demonstrations, tokenizer: PreTrainedTokenizerFast, *, size: int, window: int = 4) -> Iterator[Any]:
    """Endless batches of (token ids, written); each holds conversations of like length, so little of it is padding."""
    encode = Encoder(tokenizer)
    rng = Random(0)
    while True:
        drawn = sorted(encode([demonstrations.text(tokenizer) for _ in range(size * window)]), key=lambda each: len(each[0]))
        groups = [drawn[at : at + size] for at in range(0, len(drawn), size)]
        rng.shuffle(groups)
        yield from groups
