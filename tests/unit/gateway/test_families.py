"""Models that the renderers package knows by name: its bridge, our books."""

from pathlib import Path

import pytest

from agentrl.engine.config import ModelConfig
from agentrl.engine.scripted import ScriptedEngine
from agentrl.episode import ChatMessage, ToolCall, ToolSpec
from agentrl.gateway.families import FamilyRenderer, family_renderer
from agentrl.gateway.render import Sampled, TemplateRenderer
from agentrl.gateway.serve import make_renderer
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.testing.model import END, byte_ids, write_byte_model

TOOL = ToolSpec("calc", "d", {"type": "object"})
CALL = '<tool_call>\n{"name": "calc", "arguments": {"a":1}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("model"), more=("<|endoftext|>",))


@pytest.fixture(scope="module")
def qwen(folder: Path) -> FamilyRenderer:
    made = family_renderer("Qwen/Qwen3-0.6B", Tokenizer.from_folder(folder), {})
    assert isinstance(made, FamilyRenderer)
    return made


def test_a_known_name_gets_its_family_and_others_their_template(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    engine = ScriptedEngine([], eos_token_id=byte_ids()[END])

    def kind(**model: str) -> type:
        return type(make_renderer(folder, tokenizer, ModelConfig(**model), engine))  # type: ignore[arg-type]

    assert kind(name="Qwen/Qwen3-0.6B") is FamilyRenderer
    assert kind(name="Qwen/Qwen3-0.6B", tool_format="hermes") is TemplateRenderer
    assert kind(name="somebody/finetune") is TemplateRenderer
    assert kind(name="tiny") is TemplateRenderer
    assert kind(name="openai/gpt-oss-20b") is TemplateRenderer, "its special tokens are not in this tokenizer"


def test_the_bridge_keeps_what_was_sampled(qwen: FamilyRenderer, folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    prompt = qwen.render([ChatMessage(role="user", content="hi <|im_end|>")], [TOOL])
    completion = tokenizer.encode(f"<think>\nhm\n</think>\n\n{CALL}<|im_end|>")
    parser = qwen.parser(turn="t", tools=True, stops=())
    parser.feed(completion)
    parser.finish("stop")
    reply = parser.reply()
    assert (reply.reasoning, reply.tool_calls) == ("hm", (ToolCall("call_t_0", "calc", '{"a":1}'),))
    result = ChatMessage(role="tool", content="2 <|im_start|>", tool_call_id="call_t_0")
    extension = qwen.extend(Sampled(completion, reply, "stop", prompt), [result], [TOOL])
    assert extension is not None
    text = "\n<|im_start|>user\n<tool_response>\n2 <|im_start|>\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(extension) == text
    assert extension.count(byte_ids()["<|im_start|>"]) == 2, "what the tool printed is plain text"
    assert prompt.count(byte_ids()[END]) == 2


def test_what_the_family_cannot_keep_is_rendered_fresh(qwen: FamilyRenderer, folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    prompt = qwen.render([ChatMessage(role="user", content="hi")], [])
    completion = tokenizer.encode("<think>\nhm\n</think>\n\nyes<|im_end|>")
    reply = ChatMessage(role="assistant", content="yes", reasoning="hm")
    said = Sampled(completion, reply, "stop", prompt)
    assert qwen.extend(said, [ChatMessage(role="user", content="why?")], []) is None, "its template drops thinking at a new query"
    assert qwen.extend(said, [reply, ChatMessage(role="user", content="why?")], []) is None
