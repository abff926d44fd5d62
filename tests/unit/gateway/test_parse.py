"""Replies are parsed on ids, reasoning first; streamed and whole replies say the same."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.episode import ChatMessage, ToolCall
from agentrl.gateway.format import HERMES, THINK, ReplyFormat
from agentrl.gateway.parse import Delta, ReplyParser, read_call
from agentrl.gateway.tokenizer import Tokenizer
from agentrl.testing.model import END, byte_ids, write_byte_model

FORMAT = ReplyFormat(reasoning=THINK, calls=HERMES)
CALL = '<tool_call>\n{"name": "calc", "arguments": {"a":1, "b" : false}}\n</tool_call>'


@pytest.fixture(scope="module", params=["single tokens", "spelled"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """With the marking words as tokens, and without."""
    return Tokenizer.from_folder(write_byte_model(tmp_path_factory.mktemp("model"), markup=request.param == "single tokens"))


def parse(
    tokenizer: Tokenizer,
    text: str,
    *,
    format: ReplyFormat = FORMAT,
    tools: bool = True,
    stops: tuple[str, ...] = (),
    reason: str = "stop",
    pieces: list[int] | None = None,
) -> tuple[ReplyParser, ChatMessage, list[Delta]]:
    ids = tokenizer.encode(text)
    parser = ReplyParser(tokenizer, format, turn="t", tools=tools, stops=stops, end_ids=frozenset({byte_ids()[END]}))
    deltas: list[Delta] = []
    at = 0
    for size in pieces or [len(ids)]:
        deltas += parser.feed(ids[at : at + size])
        at += size
    deltas += parser.feed(ids[at:])
    deltas += parser.finish(reason)  # type: ignore[arg-type]
    return parser, parser.reply(), deltas


def test_reasoning_text_and_calls_are_told_apart(tokenizer: Tokenizer) -> None:
    _, reply, _ = parse(tokenizer, f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}<|im_end|>")
    assert (reply.reasoning, reply.content) == ("hm", "Let me see.")
    assert reply.tool_calls == tuple(ToolCall(f"call_t_{k}", "calc", '{"a":1, "b" : false}') for k in range(2))


def test_a_call_inside_thinking_is_thinking(tokenizer: Tokenizer) -> None:
    _, reply, _ = parse(tokenizer, f"<think>{CALL}</think>done<|im_end|>")
    assert (reply.reasoning, reply.content, reply.tool_calls) == (CALL, "done", ())
    _, reply, _ = parse(tokenizer, f"<think>{CALL}", reason="length")
    assert (reply.reasoning, reply.content, reply.tool_calls) == (CALL, "", ())


def test_thinking_after_text_is_text(tokenizer: Tokenizer) -> None:
    _, reply, _ = parse(tokenizer, "so <think>no</think><|im_end|>")
    assert (reply.reasoning, reply.content) == (None, "so <think>no</think>")


def test_a_prompt_that_opens_the_thinking(tokenizer: Tokenizer) -> None:
    _, reply, _ = parse(tokenizer, "hm\n</think>\n\nyes<|im_end|>", format=ReplyFormat(THINK, HERMES, opened=True))
    assert (reply.reasoning, reply.content) == ("hm", "yes")


@pytest.mark.parametrize(
    "body",
    ["not json", '{"arguments": {}}', '{"name": "", "arguments": {}}', '{"name": "f", "arguments": [1]}', '{"name": "f"} x', "[" * 5000],
)
def test_malformed_calls_stay_text_and_are_counted(tokenizer: Tokenizer, body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    parser, reply, _ = parse(tokenizer, f"{text}<|im_end|>")
    assert (reply.content, reply.tool_calls, parser.malformed) == (text, (), 1)


def test_an_unclosed_call_counts_only_if_the_model_ended_its_turn(tokenizer: Tokenizer) -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}'
    assert parse(tokenizer, f"{text}<|im_end|>")[1].tool_calls == (ToolCall("call_t_0", "f", "{}"),)
    assert parse(tokenizer, text, reason="length")[1] == ChatMessage(role="assistant", content=text)


def test_without_tools_a_call_is_text(tokenizer: Tokenizer) -> None:
    assert parse(tokenizer, f"{CALL}<|im_end|>", tools=False)[1] == ChatMessage(role="assistant", content=CALL)


def test_plain_text_keeps_its_white_space(tokenizer: Tokenizer) -> None:
    assert parse(tokenizer, "  two  \n<|im_end|>", format=ReplyFormat())[1].content == "  two  \n"


def test_stop_strings_end_the_reply_before_them(tokenizer: Tokenizer) -> None:
    parser, reply, _ = parse(tokenizer, "one STOP two", stops=("STOP",), pieces=[1] * 12)
    assert (reply.content, parser.stopped) == ("one ", True)
    parser, reply, _ = parse(tokenizer, f"x {CALL} tail", stops=("</tool_call>",))
    assert parser.stopped
    assert reply.tool_calls == ()


@given(st.data())
def test_pieces_do_not_matter(tokenizer: Tokenizer, data: st.DataObject) -> None:
    words = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {"x": "é🦊"}}',
        "🦊",
        " ",
        "\n",
        "a",
        "<tool",
        "STOP",
        "ST",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=10)))
    pieces = data.draw(st.lists(st.integers(1, 6), max_size=20))
    stops = data.draw(st.sampled_from([(), ("STOP",), ("</tool_call>", "a")]))
    whole, streamed = parse(tokenizer, text, stops=stops), parse(tokenizer, text, stops=stops, pieces=pieces)
    assert whole[1] == streamed[1]
    assert whole[0].malformed == streamed[0].malformed
    for _, reply, deltas in (whole, streamed):
        assert "".join(delta.content for delta in deltas) == reply.content
        assert "".join(delta.reasoning for delta in deltas) == (reply.reasoning or "")
        assert tuple(delta.call for delta in deltas if delta.call is not None) == reply.tool_calls


def test_ordinary_tokens_that_spell_a_word_are_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_byte_model(tmp_path))
    parser = ReplyParser(tokenizer, FORMAT, turn="t", tools=True)
    parser.feed(list(CALL.encode()))
    parser.finish("stop")
    assert parser.reply() == ChatMessage(role="assistant", content=CALL)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name":"f","arguments":{"a":1}}', '{"a":1}'),
        ('{"name": "f", "arguments": { "a" : 1 }}', '{ "a" : 1 }'),
        ('{"name": "f", "parameters": {"a": false}}', '{"a": false}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f"}', "{}"),
    ],
)
def test_arguments_are_the_words_that_were_sampled(text: str, arguments: str) -> None:
    assert read_call(text, "id") == ToolCall("id", "f", arguments)
