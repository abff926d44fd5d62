"""Environments that break: each ends in a record that says why, with no reward, and the next episode goes on."""

import asyncio
import threading
from typing import Any

import anyio
import pytest

from agentrl import Env, EnvConfig, Episode, Limits, Task, tool
from agentrl.env import Calls, Session, SessionRequest
from agentrl.errors import GatewayError
from agentrl.rollout.run import LeasedEpisode, run_episode
from tests.unit.env.stage import Says, calling, lease, play


class Fine(Env):
    def reward(self, task: Task, ep: Episode) -> Any:
        return float(ep.text == task.answer)


def broken(hook: str, fault: Any) -> type[Env]:
    """An environment whose hook does this."""

    async def later(self: Env, task: Task, ep: Episode) -> Any:
        return await fault()

    return type("Broken", (Fine,), {hook: later})


async def raises() -> None:
    raise KeyError("lost")


async def exits() -> None:
    raise SystemExit(3)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def cancels() -> None:
    task = asyncio.ensure_future(anyio.sleep_forever())
    task.cancel()
    await task


SHORT = Limits(setup_s=0.05, reward_s=0.05)
TASK = Task("Say yes.", answer="yes", limits=SHORT)


@pytest.mark.parametrize("hook", ["setup", "run", "reward"])
@pytest.mark.parametrize(
    ("fault", "kind"), [(raises, "KeyError"), (exits, "SystemExit"), (interrupts, "KeyboardInterrupt"), (cancels, "CancelledError")]
)
async def test_a_hook_that_raises_rejects_the_episode_with_its_traceback(hook: str, fault: Any, kind: str) -> None:
    record = await play(broken(hook, fault)(), Says("yes"))
    assert (record.terminal, record.reward) == ("error", None)
    error = record.errors[0]
    assert (error.where, error.kind) == (hook, kind)
    assert error.message.startswith(f"{hook}: {kind}")
    assert fault.__name__ in error.traceback


@pytest.mark.parametrize("hook", ["setup", "reward"])
async def test_a_hook_that_hangs_rejects_the_episode(hook: str) -> None:
    record = await play(broken(hook, anyio.sleep_forever)(), Says("yes"), TASK)
    assert (record.terminal, record.reward, record.errors[0].kind) == ("error", None, "Overtime")
    assert record.errors[0].message == f"{hook} took longer than 0.05 s"


async def test_teardown_comes_always_and_its_failure_costs_no_reward() -> None:
    class Untidy(Fine):
        torn = 0

        def setup(self, task: Task, ep: Episode) -> None:
            if task.prompt == "break":
                raise OSError("no disk")

        def teardown(self, task: Task, ep: Episode) -> None:
            type(self).torn += 1
            raise OSError("cannot clean")

    record = await play(Untidy(), Says("yes"))
    assert (record.reward, record.terminal, record.errors[0].where) == (1.0, "finished", "teardown")
    record = await play(Untidy(), Says("yes"), Task("break"))
    assert [error.where for error in record.errors] == ["setup", "teardown"]
    assert Untidy.torn == 2


@pytest.mark.parametrize(("config", "terminal", "reward"), [("mask", "error", None), ("retry(2)", "error", None), ("zero", "crash", 0.0)])
async def test_on_error(config: str, terminal: str, reward: float | None) -> None:
    class Late(Fine):
        def reward(self, task: Task, ep: Episode) -> None:
            raise ValueError("after the run")

    record = await play(Late(EnvConfig(on_error=config)), Says("yes"))
    assert (record.terminal, record.agent_runs[0].terminal, record.reward) == (terminal, terminal, reward)


async def test_a_state_that_cannot_be_made_is_an_error_of_the_set_up() -> None:
    class Bad(Fine):
        class State:
            def __init__(self) -> None:
                raise RuntimeError("no state")

    assert (await play(Bad(), Says("yes"))).errors[0].message == "State(): no state"


class Tools(Fine):
    release = threading.Event()

    @tool
    def broken(self) -> str:
        return str({}["key"])

    @tool
    def spins(self) -> None:
        while not self.release.is_set():
            pass

    @tool
    async def sleeps(self) -> None:
        await anyio.sleep_forever()


async def test_a_tool_that_raises_rejects_the_episode() -> None:
    record = await play(Tools(), Says(calling("broken"), "yes"))
    assert (record.terminal, record.reward) == ("error", None)
    assert (record.errors[0].where, record.errors[0].kind) == ("tool broken", "KeyError")
    assert record.tool_calls[0].error == "tool broken: KeyError: 'key'"


@pytest.mark.parametrize("name", ["spins", "sleeps"])
async def test_a_tool_that_takes_too_long_is_given_up_and_the_model_is_told(name: str) -> None:
    calls = Calls()
    task = Task("Say yes.", answer="yes", limits=Limits(tool_s=0.05))
    record = await run_episode(Tools(), lease(task), Says(calling(name), "yes"), calls=calls)
    assert (record.terminal, record.reward, record.errors) == ("finished", 1.0, ())
    assert record.tool_calls[0].error == f"tool {name} took longer than 0.05 s"
    assert calls.leaked == (("tool spins",) if name == "spins" else ())
    Tools.release.set()


async def test_an_unreachable_model_is_not_the_policys_fault() -> None:
    async def no_gateway(request: SessionRequest) -> Session:
        raise GatewayError("no gateway")

    record = await run_episode(Fine(), lease(TASK), no_gateway)
    assert (record.terminal, record.reward, record.errors[0].kind) == ("error", None, "GatewayError")


async def test_an_answer_of_nothing_is_scored() -> None:
    assert (await play(Fine(), Says())).reward == 0.0


async def test_a_lease_that_runs_out_ends_the_episode() -> None:
    record = await play(broken("run", anyio.sleep_forever)(), Says("yes"), TASK, deadline_s=0.05)
    assert (record.terminal, record.reward) == ("time", None)
    assert record.errors[0].message == "the lease of 0.05 s ran out"


async def test_a_withdrawn_lease_ends_the_episode_and_tears_it_down() -> None:
    ready, torn = anyio.Event(), []

    class Waits(Fine):
        async def run(self, task: Task, ep: Episode) -> None:
            ready.set()
            await anyio.sleep_forever()

        async def teardown(self, task: Task, ep: Episode) -> None:
            await anyio.lowlevel.checkpoint()
            torn.append(ep.id)

    leased = LeasedEpisode(Waits(), lease(TASK), Says("yes"), calls=Calls())
    async with anyio.create_task_group() as tasks:

        async def withdraw() -> None:
            await ready.wait()
            leased.scope.cancel()

        tasks.start_soon(withdraw)
        record = await leased.run()
    assert (record.terminal, torn, record.errors[0].message) == ("cancelled", ["e-lease"], "the lease was withdrawn")


async def test_a_lease_of_no_task_is_recorded() -> None:
    bad = lease(TASK)
    record = await run_episode(Fine(), type(bad)(**{**{f: getattr(bad, f) for f in bad.__struct_fields__}, "task": {"id": 3}}), Says())
    assert (record.terminal, record.errors[0].where) == ("error", "task")
