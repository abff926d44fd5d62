from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.train.tiny.tokenizer import END, START, make_tokenizer

TOOLS = [{"type": "function", "function": {"name": "calc", "description": "Evaluate.", "parameters": {"type": "object"}}}]


def call(expression: str, content: str = "") -> dict[str, Any]:
    function = {"name": "calc", "arguments": f'{{"expression": "{expression}"}}'}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Numbers: 3 4 5."},
    call("3*4-5"),
    {"role": "tool", "content": "7, too low"},
    call("3*4+12", "Let me try."),
    {"role": "tool", "content": "24, too high"},
    {"role": "assistant", "content": "3*4+5"},
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    text = make_tokenizer([]).apply_chat_template(TALK, tools=TOOLS, tokenize=False)
    return make_tokenizer([text] * 3)


def words(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    return [tokenizer.decode([token]) for token in tokenizer.encode(text, add_special_tokens=False)]


def test_boilerplate_and_numbers_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    said = '<tool_call>\n{"name": "calc", "arguments": {"expression": "3*4-99"}}\n</tool_call><|im_end|>'
    assert words(tokenizer, said) == [
        '<tool_call>\n{"name": "calc", "arguments": {"expression": "',
        *("3", "*", "4", "-", "99"),
        '"}}\n</tool_call>',
        END,
    ]


def test_the_template_writes_hermes_calls_and_tool_turns(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.apply_chat_template(TALK, tools=TOOLS, tokenize=False) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n"
        '{"name": "calc", "description": "Evaluate.", "parameters": {"type": "object"}}\n'
        'Call one with <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nNumbers: 3 4 5.<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "calc", "arguments": {"expression": "3*4-5"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n7, too low<|im_end|>\n"
        '<|im_start|>assistant\nLet me try.\n<tool_call>\n{"name": "calc", "arguments": {"expression": "3*4+12"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n24, too high<|im_end|>\n"
        "<|im_start|>assistant\n3*4+5<|im_end|>\n"
    )


def test_a_template_given_arguments_as_objects_writes_the_same(tokenizer: PreTrainedTokenizerFast) -> None:
    as_object = {"role": "assistant", "content": None, "tool_calls": [{"name": "calc", "arguments": {"expression": "3*4-5"}}]}
    both = [tokenizer.apply_chat_template([TALK[1], each], tools=TOOLS, tokenize=False) for each in (TALK[2], as_object)]
    assert both[0] == both[1]


def test_each_turn_extends_the_ids_before_it(tokenizer: PreTrainedTokenizerFast) -> None:
    whole = tokenizer.apply_chat_template(TALK, tools=TOOLS)["input_ids"]
    for turn in (2, 4, 6):
        prompt = tokenizer.apply_chat_template(TALK[:turn], tools=TOOLS, add_generation_prompt=True)["input_ids"]
        assert whole[: len(prompt)] == prompt
        said = tokenizer.decode(whole[len(prompt) :]).partition(END)[0] + END
        alone = tokenizer.encode(said, add_special_tokens=False)
        assert whole[len(prompt) : len(prompt) + len(alone)] == alone


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    tokenizer = make_tokenizer([f"{START}user\nhello{END}"] * 3)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_rare_pieces_get_no_token_of_their_own() -> None:
    tokenizer = make_tokenizer(["often"] * 3 + ["rarely"] * 2)
    assert words(tokenizer, "often") == ["often"]
    assert words(tokenizer, "rarely") == list("rarely")
