"""Graders in processes of their own: loops on the CPU are killed, whatever they hold."""

import os
import re
from typing import Any

import anyio
import pytest

from agentrl import Env, Episode, Limits, Task, isolated
from agentrl.errors import EnvError
from tests.unit.env.stage import Says, play


@isolated
def grade(text: str, *, answer: str) -> float:
    """Runs forever on a certain answer, in C and with the interpreter's lock held."""
    if text == "loop":
        re.match(r"(a+)+$", "a" * 64 + "b")
    return float(text == answer)


@isolated
def whoami() -> int:
    return os.getpid()


@isolated
def breaks() -> None:
    raise ValueError("no grade")


class Graded(Env):
    async def reward(self, task: Task, ep: Episode) -> Any:
        return await grade(ep.text, answer=task.answer)


async def test_a_grader_gives_its_result_from_another_process() -> None:
    assert (await play(Graded(), Says("yes"))).reward == 1.0
    assert await whoami() != os.getpid()


async def test_a_grader_that_loops_on_the_cpu_is_killed_and_the_next_one_works() -> None:
    task = Task("Say yes.", answer="yes", limits=Limits(reward_s=3))
    with anyio.fail_after(60):
        looped = await play(Graded(), Says("loop"), task)
        assert (looped.terminal, looped.reward, looped.errors[0].message) == ("error", None, "reward took longer than 3 s")
        assert (await play(Graded(), Says("yes"))).reward == 1.0


async def test_a_graders_exception_comes_back() -> None:
    with pytest.raises(ValueError, match="no grade"):
        await breaks()


def test_only_functions_that_can_be_imported_are_isolated() -> None:
    def local() -> None: ...

    with pytest.raises(EnvError, match="define it at the top of a module"):
        isolated(local)
