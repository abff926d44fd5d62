"""Tasks are plain frozen data with a name of their own."""

import msgspec
import pytest

from agentrl.env import Limits, Task
from agentrl.env.limits import Bounds, bounds
from agentrl.env.seed import derive
from agentrl.episode import ChatMessage
from agentrl.errors import ConfigError, EnvError


def test_equal_content_gives_equal_ids() -> None:
    assert Task("add", answer=3, data={"a": 1, "b": 2}).id == Task("add", answer=3, data={"b": 2, "a": 1}).id
    assert len({Task("add").id, Task("add", answer=3).id, Task("add", system="s").id, Task("sub").id}) == 4


def test_a_given_id_stays() -> None:
    assert Task("add", id="row-7").id == "row-7"


def test_tasks_travel_as_plain_data() -> None:
    task = Task([{"role": "user", "content": "hi"}], answer=[1, "x"], limits=Limits(turns=3), data={"n": None})  # type: ignore[list-item]
    plain = task.to_builtins()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain)) == plain
    assert Task.from_builtins(plain) == task
    assert task.prompt == [ChatMessage(role="user", content="hi")]


def test_what_is_not_plain_data_is_refused() -> None:
    with pytest.raises(EnvError, match="plain data only"):
        Task("add", answer=object())
    with pytest.raises(EnvError, match="not a chat message"):
        Task(["hello"])  # type: ignore[list-item]
    with pytest.raises(EnvError, match="must be text"):
        Task(3)  # type: ignore[arg-type]
    with pytest.raises(EnvError, match="not a task"):
        Task.from_builtins({"id": 3})


def test_the_group_shares_its_generator() -> None:
    task = Task("roll")
    assert task.seeded(5).rng.random() == task.seeded(5).rng.random() != task.seeded(6).rng.random()


def test_the_opening_prefers_the_tasks_system_text() -> None:
    roles = [(m.role, m.content) for m in Task("hi", system="task").opening("agent")]
    assert roles == [("system", "task"), ("user", "hi")]
    assert Task("hi").opening("agent")[0].content == "agent"
    assert [m.role for m in Task("hi").opening()] == ["user"]


def test_limits_inherit_field_by_field() -> None:
    assert bounds(Limits(turns=8, tool_s=5), None, Limits(turns=4)) == Bounds(turns=4, tool_s=5)


def test_limits_refuse_nonsense() -> None:
    with pytest.raises(ConfigError, match=r"limits\.turns=0"):
        Limits(turns=0)


def test_seeds_are_the_same_everywhere() -> None:
    assert derive("task", 1) == 7504700089033754888
