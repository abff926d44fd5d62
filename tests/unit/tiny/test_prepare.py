from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.env import Env, Split, Task, assistant, tool, tool_result
from agentrl.episode import ChatMessage, ToolCall
from agentrl.errors import ConfigError
from agentrl.train.tiny.demonstrations import Demonstrations, Encoder
from agentrl.train.tiny.prepare import prepare_tiny
from agentrl.train.tiny.recipe import Recipe, Shape, WarmStart
from agentrl.train.tiny.tokenizer import make_tokenizer

SMALL = Recipe(shape=Shape(hidden=32, feed_forward=64), warm_start=WarmStart(steps=60), samples=32, tasks=16)


class Parrot(Env):
    """Say the number again."""

    def tasks(self, split: Split) -> Iterator[Task]:
        for number in range(10) if split == "train" else range(10, 20):
            yield Task(prompt=f"Say {number}", answer=number)

    @tool
    async def look(self) -> str:
        """Look around."""
        return "nothing"

    def demonstrations(self, task: Task, rng: Random) -> list[ChatMessage] | None:
        call = ToolCall(id="c", name="look", arguments="{}")
        return [*self.opening(task), assistant(calls=[call]), tool_result(call, "nothing"), assistant(str(task.answer))]


class Silent(Parrot):
    """Shows nothing."""

    def demonstrations(self, task: Task, rng: Random) -> None:
        return None


def test_what_the_assistant_wrote_is_marked() -> None:
    demonstrations = Demonstrations(Parrot(), tasks=1, rng=Random(0))
    text = demonstrations.text(make_tokenizer([]))
    tokenizer = make_tokenizer([text] * 3)
    [(ids, written)] = Encoder(tokenizer)([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids[written]) == '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>0<|im_end|>'


def test_a_warm_started_model_speaks_the_format_and_is_made_once(tmp_path: Path) -> None:
    losses: list[float] = []
    folder = prepare_tiny(Parrot(), seed=0, cache_dir=tmp_path, recipe=SMALL, progress=lambda at: losses.append(at.loss))
    assert len(losses) == 60
    assert losses[-1] < losses[0] / 3
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    specs = [{"type": "function", "function": msgspec.to_builtins(each.spec)} for each in Parrot().tools()]
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say 7"}], tools=specs, add_generation_prompt=True, return_tensors="pt"
    )
    said = tokenizer.decode(model.generate(**prompt, do_sample=False, max_new_tokens=8)[0, prompt["input_ids"].shape[1] :])
    assert said == '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
    again = prepare_tiny(Parrot(), seed=0, cache_dir=tmp_path, recipe=SMALL, progress=lambda at: pytest.fail("made again"))
    assert again == folder
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_equal_seeds_make_equal_weights_and_others_do_not(tmp_path: Path) -> None:
    quick = msgspec.structs.replace(SMALL, warm_start=WarmStart(steps=3))
    folders = [prepare_tiny(Parrot(), seed=seed, cache_dir=tmp_path / name, recipe=quick) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    first, same, other = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_an_environment_without_demonstrations_is_refused_with_models_to_try(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="silent has none: choose a model that knows language, such as --model smollm2"):
        prepare_tiny(Silent(), seed=0, cache_dir=tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is there room, and may it be written"):
        prepare_tiny(Parrot(), seed=0, cache_dir=tmp_path / "file", recipe=msgspec.structs.replace(SMALL, warm_start=WarmStart(steps=1)))
