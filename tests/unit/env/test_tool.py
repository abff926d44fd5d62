"""Tools: the schema is the signature, and what the model does wrong is told to the model."""

from typing import Any, Literal

import pytest

from agentrl import Env, Episode, Task, ToolError, tool
from agentrl.env.tool import MAX_RESULT, Tool, as_text, bounded
from agentrl.episode import EpisodeRecord
from agentrl.errors import EnvError
from tests.unit.env.stage import Says, calling, play


class Desk(Env):
    def tasks(self, split: str) -> list[Task]:
        return [Task("Say yes.", answer="yes")]

    def reward(self, task: Task, ep: Episode) -> float:
        return float(ep.text == task.answer)

    @tool
    async def add(self, a: int, b: int = 2, *, kind: Literal["int", "text"] = "int") -> Any:
        """Add two numbers.

        Exactly.

        Args:
            a: The first,
                a whole number.
            b (int): The second.
        """
        return a + b if kind == "int" else f"{a}+{b}"

    @tool
    def note(self, text: str, ep: Episode) -> dict[str, Any]:
        """Keep a note."""
        ep.state.note = text
        return {"kept": ep.state.note, "agent_run": ep.id}

    @tool
    def refuse(self) -> None:
        raise ToolError("the desk is closed")

    @tool
    def flood(self) -> str:
        return "x" * 100_000_000

    @tool
    def odd(self) -> str:
        return "\ud800 half a character"

    @tool
    def leave(self, ep: Episode) -> str:
        ep.stop()
        return "bye"


async def told(name: str, arguments: str = "{}") -> tuple[str, EpisodeRecord]:
    """What the model is told after this call, and the record."""
    record = await play(Desk(), Says(calling(name, arguments), "yes"))
    assert (record.reward, record.terminal, record.errors) == (1.0, "finished", ())
    call = record.tool_calls[0]
    return call.error or call.result, record


def test_schema_comes_from_signature_and_docstring() -> None:
    spec = Tool(Desk().add).spec
    assert spec.name == "add"
    assert spec.description == "Add two numbers.\n\nExactly."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first, a whole number."},
            "b": {"type": "integer", "description": "The second.", "default": 2},
            "kind": {"enum": ["int", "text"], "default": "int"},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_the_episode_is_hidden_from_the_model() -> None:
    assert Tool(Desk().note).spec.parameters["properties"] == {"text": {"type": "string"}}


def test_parameters_without_types_are_refused() -> None:
    def bad(x) -> None: ...  # type: ignore[no-untyped-def]

    def worse(*args: str) -> None: ...

    with pytest.raises(EnvError, match="needs a type annotation"):
        Tool(bad)
    with pytest.raises(EnvError, match="cannot be filled by name"):
        Tool(worse)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("add", '{"a": 1}', "3"),
        ("add", '{"a": "40"}', "42"),  # converted
        ("add", '{"a": 1, "kind": "text"}', "1+2"),
        ("add", '{"a": 1', "the arguments of add are not valid JSON"),
        ("add", "[1]", "bad arguments for add: Expected `object`"),
        ("add", "", "bad arguments for add: Object missing required field `a`"),
        ("add", '{"a": "x"}', "bad arguments for add: Expected `int`, got `str` - at `$.a`"),
        ("add", '{"a": 1, "c": 1}', "bad arguments for add: Object contains unknown field `c`"),
        ("ad", "{}", "there is no tool 'ad'. Did you mean 'add'?"),
        ("refuse", "", "the desk is closed"),
        ("odd", "", "? half a character"),
        ("note", '{"text": "milk"}', '{"kept":"milk","agent_run":"e-lease.main0"}'),
    ],
)
async def test_what_the_model_is_told(name: str, arguments: str, message: str) -> None:
    assert (await told(name, arguments))[0].startswith(message)


async def test_a_failed_call_is_an_error_to_the_model_and_in_the_record() -> None:
    _, record = await told("refuse")
    assert (record.tool_calls[0].result, record.tool_calls[0].error) == ("", "the desk is closed")
    assert record.tool_calls[0].turn == "e-lease.main0.t1"


async def test_a_hundred_megabytes_of_output_are_cut() -> None:
    message, record = await told("flood")
    assert len(message) < MAX_RESULT + 100
    assert f"[{100_000_000 - MAX_RESULT} characters cut]" in message
    assert len(record.tool_calls[0].result) < MAX_RESULT + 100


async def test_a_tool_can_end_the_run() -> None:
    record = await play(Desk(), Says(calling("leave"), "never said"))
    assert (record.terminal, record.agent_runs[0].turns) == ("finished", 1)


def test_results_become_text() -> None:
    assert [as_text(value) for value in ("a", None, 1.5, [1, "x"], {1, 2} - {2})] == ["a", "", "1.5", '[1,"x"]', "[1]"]
    assert as_text(Desk).startswith("<class")
    assert bounded("abcdef", 4) == "ab\n… [2 characters cut] …\nef"
