"""Extensions are what the template would have put there; what cannot be proven is refused or rendered fresh."""

from pathlib import Path

import pytest

from agentrl.engine.config import ModelConfig
from agentrl.engine.scripted import ScriptedEngine
from agentrl.episode import ChatMessage, ToolCall, ToolSpec
from agentrl.errors import ConfigError
from agentrl.gateway.proof import Proof, prove
from agentrl.gateway.render import Renderer, Sampled, TemplateRenderer
from agentrl.gateway.serve import make_renderer
from agentrl.gateway.template import Template, TemplateRefusal
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.testing.model import CHATML, CHATML_TOOLS, END, byte_ids, write_byte_model

QWEN3_LIKE = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools <tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools> use <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or message.reasoning_content) %}
{{- '<think>\\n' + (message.reasoning_content or '').strip('\\n') + '\\n</think>\\n\\n' + message.content.lstrip('\\n') }}
{%- else %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}
"""
TRIMMING = CHATML.replace("message.content", "(message.content | trim)")
TOOLS_LAST = """\
{%- for message in messages -%}
{%- if loop.last and tools -%}{{- '[TOOLS]' + (tools | tojson) + '<tool_call>' -}}{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}{{- call.function | tojson -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""
NO_END = CHATML.replace("<|im_end|>", "[/]")
COUNTING = CHATML.replace("'<|im_start|>' + message.role", "'<|im_start|>' + message.role + (loop.index | string)")
NO_TOOL_ROLE = CHATML_TOOLS.replace(
    "{%- elif message.role == 'tool' -%}", "{%- elif message.role == 'tool' -%}{{ raise_exception('only people talk here') }}"
)
STRICT = """\
{%- for message in messages -%}
{%- if message.role == 'system' or loop.index0 and messages[loop.index0 - 1].role == message.role -%}
{{ raise_exception('no system role, and roles must alternate') }}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""
FIRST_SYSTEM_ONLY = """\
{%- for message in messages -%}
{%- if message.role != 'system' or loop.first -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""


def renderer(folder: Path, template: str, *, tool_format: str = "native") -> TemplateRenderer:
    tokenizer = Tokenizer.from_folder(write_byte_model(folder, template=template))
    return TemplateRenderer(tokenizer, Template.from_folder(folder), tool_format=tool_format, eos_token_ids=[byte_ids()[END]])


@pytest.mark.parametrize("template", [CHATML_TOOLS, QWEN3_LIKE], ids=["chatml", "qwen3"])
def test_templates_with_tools_are_proven(tmp_path: Path, template: str) -> None:
    assert prove(renderer(tmp_path, template)) == Proof(None, None)


@pytest.mark.parametrize("template", [CHATML, TRIMMING, CHATML_TOOLS], ids=["chatml", "trimming", "tools"])
def test_hermes_needs_only_three_roles(tmp_path: Path, template: str) -> None:
    assert prove(renderer(tmp_path, template, tool_format="hermes")) == Proof(None, None)


@pytest.mark.parametrize(
    ("template", "extension", "tools"),
    [
        (CHATML, None, "in a way that is known"),
        (TOOLS_LAST, None, "depends on what came before"),
        (NO_END, "end-of-turn token", "in a way that is known"),
        (COUNTING, "depends on what came before", "in a way that is known"),
        (NO_TOOL_ROLE, None, "only people talk here"),
    ],
    ids=["no tools", "tools last", "no end", "counting", "no tool role"],
)
def test_what_fails_is_told_by_capability(tmp_path: Path, template: str, extension: str | None, tools: str) -> None:
    proof = prove(renderer(tmp_path, template))
    assert (proof.extension or "") == "" if extension is None else extension in str(proof.extension)
    assert tools in str(proof.tools)


def made(folder: Path, template: str, **model: object) -> Renderer:
    tokenizer = Tokenizer.from_folder(write_byte_model(folder, template=template))
    engine = ScriptedEngine([], eos_token_id=byte_ids()[END])
    return make_renderer(folder, tokenizer, ModelConfig(**model), engine)  # type: ignore[arg-type]


def test_a_template_without_tools_refuses_them_and_offers_hermes(tmp_path: Path) -> None:
    assert "model.tool_format=hermes" in str(made(tmp_path, CHATML).tools_refusal)
    assert made(tmp_path, CHATML, tool_format="hermes").tools_refusal is None


def test_an_unproven_extension_is_none(tmp_path: Path) -> None:
    said = Sampled([1, byte_ids()[END]], ChatMessage(role="assistant", content="x"), "stop")
    assert made(tmp_path, COUNTING).extend(said, [ChatMessage(role="user", content="y")], ()) is None


def test_the_digest_depends_on_what_makes_the_prompt(tmp_path: Path) -> None:
    digests = {made(tmp_path, template, tool_format=how).digest for template in (CHATML, TRIMMING) for how in ("native", "hermes")}
    assert len(digests) == 4


def extension_text(made: TemplateRenderer, completion: str, *new: ChatMessage, reply: ChatMessage) -> str:
    ids = made.extend(Sampled(made.tokenizer.encode(completion), reply, "length"), new, ())
    assert ids is not None
    return made.tokenizer.decode(ids)


def test_closers_of_a_cut_turn_are_prompt_tokens(tmp_path: Path) -> None:
    chatml, user = renderer(tmp_path, CHATML_TOOLS), ChatMessage(role="user", content="go on")
    text = ChatMessage(role="assistant", content="half")
    next_turn = "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert extension_text(chatml, "half<|im_end|>", user, reply=text) == next_turn
    assert extension_text(chatml, "half", user, reply=text) == "<|im_end|>" + next_turn
    thought = ChatMessage(role="assistant", reasoning="hm")
    assert extension_text(chatml, "<think>\nhm", user, reply=thought) == "\n</think>\n\n<|im_end|>" + next_turn
    assert extension_text(chatml, "<think>\nhm</think>", user, reply=thought) == "<|im_end|>" + next_turn


def test_results_of_parallel_calls_share_a_turn(tmp_path: Path) -> None:
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "not json"))
    results = [
        ChatMessage(role="tool", content=text, tool_call_id=call.id) for text, call in zip(("one", "<|im_end|>"), calls, strict=True)
    ]
    reply = ChatMessage(role="assistant", tool_calls=calls)
    assert extension_text(renderer(tmp_path, CHATML_TOOLS), "x<|im_end|>", *results, reply=reply) == (
        "\n<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\n<|im_end|>\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_guarded_text_reaches_names_schemas_and_arguments(tmp_path: Path) -> None:
    chatml = renderer(tmp_path, CHATML_TOOLS)
    tool = ToolSpec("f<|im_end|>", "calls <tool_call>", {"enum": ["<|im_start|>"]})
    call = ToolCall("c", "f", '{"x": "<|im_end|>"}')
    messages = [
        ChatMessage(role="user", content="<|im_start|>", name="n"),
        ChatMessage(role="assistant", tool_calls=(call,)),
        ChatMessage(role="tool", content="</tool_response>", name="<|im_end|>"),
    ]
    ids = chatml.render(messages, [tool])
    words = byte_ids()
    # Of the template's own: system, user, assistant and tool turns, closed, and the opening of the next one.
    assert (ids.count(words["<|im_start|>"]), ids.count(words[END])) == (5, 4)
    assert (ids.count(words["<tool_call>"]), ids.count(words["</tool_response>"])) == (2, 1)


def test_template_errors_are_refusals_with_the_templates_words(tmp_path: Path) -> None:
    with pytest.raises(TemplateRefusal, match="only people talk here"):
        renderer(tmp_path, NO_TOOL_ROLE).render([ChatMessage(role="tool", content="x")], ())


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, ["system:a", "system:b", "user:c", "user:d", "assistant:e", "system:f", "user:g"]),
        (STRICT, ["user:a\n\nb\n\nc\n\nd", "assistant:e", "user:f\n\ng"]),
        (FIRST_SYSTEM_ONLY, ["system:a\n\nb", "user:c", "user:d", "assistant:e", "user:f", "user:g"]),
    ],
    ids=["all taken", "strict", "first system only"],
)
def test_roles_that_a_template_refuses_or_leaves_out_are_written_another_way(tmp_path: Path, template: str, expected: list[str]) -> None:
    said = [("system", "a"), ("developer", "b"), ("user", "c"), ("user", "d"), ("assistant", "e"), ("system", "f"), ("user", "g")]
    made = renderer(tmp_path, template)
    text = made.text([ChatMessage(role=role, content=content) for role, content in said])  # type: ignore[arg-type]
    turns = [turn.removesuffix("<|im_end|>\n").replace("\n", ":", 1) for turn in text.split("<|im_start|>")[1:-1]]
    assert turns == expected
    assert prove(made).extension is None
    assert prove(renderer(tmp_path, template, tool_format="hermes")) == Proof(None, None)


def test_broken_and_missing_templates_are_configuration_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        Template.from_folder(tmp_path)
    with pytest.raises(ConfigError, match="does not parse: line 1"):
        Template("{% if %}")


def test_template_variables_and_helpers_are_those_of_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": [{"name": "default", "template": "x"}]}'
    )
    assert Template.from_folder(tmp_path).render([]) == "x"
    (tmp_path / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}\n  {% if loop.first %}\n"
        "{% generation %}{{ {'b': 'é<', 'a': 1} | tojson }}{% endgeneration %}{% break %}{% endif %}{% endfor %}{{ mood }}"
    )
    template = Template.from_folder(tmp_path, kwargs={"mood": "calm"})
    assert template.render([{}, {}]) == '<s>{"b": "é<", "a": 1}calm'
