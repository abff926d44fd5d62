"""Episodes are trees: agents run inside them, with groups, edges, limits and generators of their own."""

import threading
from statistics import mean
from typing import Any

import anyio
import pytest

from agentrl import Agent, Env, EnvConfig, Episode, Limits, Task, tool
from agentrl.env import Calls, Reply, SamplingOptions, Script, SessionRequest, assistant
from agentrl.episode import EpisodeRecord
from agentrl.errors import EnvError, LimitReached
from agentrl.rollout.run import run_episode
from tests.unit.env.stage import Says, calling, lease, play


class Yes(Env):
    def tasks(self, split: str) -> list[Task]:
        return []

    def reward(self, task: Task, ep: Episode) -> Any:
        return float(ep.text == task.answer)


class SelfPlay(Env):
    agents = {"proposer": Agent(), "solver": Agent(system="Solve.")}

    async def run(self, task: Task, ep: Episode) -> None:
        proposal = await ep["proposer"].run(task)
        puzzle = Task(proposal.text, answer="4")
        tries = await ep.all(ep["solver"].run(puzzle, source=proposal) for _ in range(4))
        for number, attempt in enumerate(tries):
            attempt.reward = float(number == 0)
        solved = mean(attempt.reward or 0.0 for attempt in tries)
        proposal.reward = 4 * solved * (1 - solved)


class TestTree:
    @pytest.fixture
    async def record(self) -> EpisodeRecord:
        return await play(SelfPlay(), Says(by_agent={"proposer": ["2+2?"], "solver": ["4"]}), Task("Propose.", id="t"))

    async def test_every_agent_run_is_recorded_with_its_own_reward(self, record: EpisodeRecord) -> None:
        assert [(run.agent, run.reward) for run in record.agent_runs] == [
            ("proposer", 0.75),
            ("solver", 1.0),
            ("solver", 0.0),
            ("solver", 0.0),
            ("solver", 0.0),
        ]
        assert record.reward == 0.75
        assert record.errors == ()

    async def test_runs_of_a_minted_task_are_a_group_within_their_episode(self, record: EpisodeRecord) -> None:
        minted = Task("2+2?", answer="4").id
        assert [run.group for run in record.agent_runs] == ["0:t:proposer"] + [f"e-lease:{minted}:solver"] * 4
        assert {run.task_id for run in record.agent_runs[1:]} == {minted}

    async def test_edges_say_whose_words_became_the_task(self, record: EpisodeRecord) -> None:
        assert {(edge.source, edge.text) for edge in record.messages} == {("e-lease.proposer0", "2+2?")}
        assert [edge.target for edge in record.messages] == [f"e-lease.solver{i}" for i in (1, 2, 3, 4)]
        assert {run.source for run in record.agent_runs[1:]} == {"e-lease.proposer0"}

    async def test_a_group_parts_one_agents_runs_and_never_joins_two(self) -> None:
        class Named(Yes):
            agents = {"a": Agent(), "b": Agent()}

            async def run(self, task: Task, ep: Episode) -> None:
                await ep["a"].run(task, group="b")
                await ep["b"].run(task)
                await ep["b"].run(task, group="b")

        record = await play(Named(), Says("yes"))
        scope = f"0:{record.key.task_id}"
        assert [run.group for run in record.agent_runs] == [f"{scope}:a:b", f"{scope}:b", f"{scope}:b:b"]


class TestRewards:
    async def test_reward_fills_what_run_left_unset(self) -> None:
        class Two(Yes):
            agents = {"a": Agent(), "b": Agent(), "judge": Agent(train=False), "other": Agent(model="openai/x")}

            async def run(self, task: Task, ep: Episode) -> None:
                (await ep["b"].run("again")).reward = 0.25
                for name in ("a", "judge", "other"):
                    await ep[name].run(task)
                (await ep["a"].run(task)).reward = None
                await ep["a"].run(Task("minted"))

        record = await play(Two(), Says("yes"))
        rewards = [(run.agent, run.trained, run.reward) for run in record.agent_runs]
        assert rewards == [
            ("b", True, 0.25),
            ("a", True, 1.0),
            ("judge", False, None),
            ("other", False, None),
            ("a", True, None),  # masked by run
            ("a", True, None),  # minted and left unset
        ]
        assert record.agent_runs[0].group == "0:" + record.key.task_id + ":b"  # other words for the same task

    async def test_components_are_weighted(self) -> None:
        class Parts(Yes):
            weights = {"style": 0.5, "length": 0}

            def reward(self, task: Task, ep: Episode) -> Any:
                ep.metrics["seen"] = 3
                return {"right": True, "style": 0.5, "length": 120}

        record = await play(Parts(), Says("yes"))
        assert (record.reward, record.rewards) == (1.25, {"right": 1.0, "style": 0.5, "length": 120.0})
        assert record.metrics == {"seen": 3.0}

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (float("nan"), "reward is nan"),
            (float("inf"), "reward is inf"),
            ("1.0", "reward is '1.0' of type str"),
            ([1.0], "reward is [1.0] of type list"),
            ({}, "empty dict"),
            ({"a": float("nan")}, "reward component 'a' is nan"),
            ("x" * 100_000_000, "reward is 'xxx"),
        ],
    )
    async def test_what_is_no_number_rejects_the_episode(self, value: Any, message: str) -> None:
        class Bad(Yes):
            def reward(self, task: Task, ep: Episode) -> Any:
                return value

        record = await play(Bad(), Says("yes"))
        assert (record.terminal, record.reward, record.agent_runs[0].reward) == ("error", None, None)
        assert message in record.errors[0].message
        assert len(record.errors[0].message) < 3000
        assert record.errors[0].where == "reward"

    async def test_a_weight_without_component_is_a_mistake(self) -> None:
        class Typo(Yes):
            weights = {"stile": 1.0}

            def reward(self, task: Task, ep: Episode) -> Any:
                return {"style": 1.0}

        assert "no component stile" in (await play(Typo(), Says("yes"))).errors[0].message

    async def test_a_bad_reward_is_refused_where_it_is_set(self) -> None:
        class Bad(Yes):
            async def run(self, task: Task, ep: Episode) -> None:
                (await ep["main"].run(task)).reward = float("nan")

        record = await play(Bad(), Says("yes"))
        assert (record.terminal, record.reward, record.errors[0].where) == ("error", None, "run")

    async def test_a_metric_that_is_no_number_rejects_the_episode(self) -> None:
        class Bad(Yes):
            def reward(self, task: Task, ep: Episode) -> float:
                ep.metrics["x"] = "fast"  # type: ignore[assignment]
                return 1.0

        record = await play(Bad(), Says("yes"))
        assert (record.terminal, record.metrics) == ("error", {})
        assert "metric 'x' is 'fast'" in record.errors[0].message

    async def test_an_environment_without_rewards_says_so(self) -> None:
        class Silent(Env):
            pass

        assert "gives no reward" in (await play(Silent(), Says("yes"))).errors[0].message

    async def test_none_masks(self) -> None:
        class Masked(Yes):
            def reward(self, task: Task, ep: Episode) -> None:
                return None

        record = await play(Masked(), Says("yes"))
        assert (record.reward, record.terminal, record.errors) == (None, "finished", ())


class Cut:
    """Opens sessions whose only reply was cut."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    async def __call__(self, request: SessionRequest) -> Script:
        tokens = self._tokens

        class Session(Script):
            async def call(self, messages: Any, tools: Any) -> Reply:
                return Reply(turn="t", message=assistant("yes and"), finish="length", completion_tokens=tokens)

        return Session("", [])


class Full:
    """Opens sessions whose second turn finds the context full."""

    async def __call__(self, request: SessionRequest) -> Script:
        class Session(Script):
            async def call(self, messages: Any, tools: Any) -> Reply:
                if self._said:
                    raise LimitReached("context")
                return await super().call(messages, tools)

        return Session(request.agent_run, [calling("ping")])


class Ping(Yes):
    @tool
    async def ping(self) -> str:
        return "pong"

    def reward(self, task: Task, ep: Episode) -> float:
        return 0.5


class TestLimits:
    async def test_a_model_that_never_stops_meets_its_turns(self) -> None:
        record = await play(Ping(), Says(*[calling("ping")] * 100), Task("go", limits=Limits(turns=3)))
        assert (record.terminal, record.agent_runs[0].turns, len(record.tool_calls), record.reward) == ("turns", 3, 3, 0.5)

    @pytest.mark.parametrize(("tokens", "terminal"), [(9, "length"), (10, "tokens")])
    async def test_a_cut_turn_ends_the_run(self, tokens: int, terminal: str) -> None:
        record = await play(Ping(), Cut(tokens), Task("go", limits=Limits(tokens=10)))
        assert (record.terminal, record.agent_runs[0].terminal) == (terminal, terminal)

    async def test_a_full_context_ends_the_run(self) -> None:
        record = await play(Ping(), Full())
        assert (record.terminal, record.agent_runs[0].turns, record.errors) == ("context", 1, ())

    @pytest.mark.parametrize(("config", "reward"), [("score", 0.5), ("zero", 0.0), ("mask", None)])
    async def test_on_truncate(self, config: str, reward: float | None) -> None:
        env = Ping(EnvConfig(on_truncate=config))
        record = await play(env, Full())
        assert (record.reward, record.terminal) == (reward, "context")

    async def test_a_run_that_hangs_ends_by_time_and_is_scored(self) -> None:
        class Hangs(Ping):
            async def run(self, task: Task, ep: Episode) -> None:
                async with ep["main"].open():
                    await anyio.sleep_forever()

        record = await play(Hangs(), Says("yes"), Task("go", limits=Limits(run_s=0.05)))
        assert (record.terminal, record.agent_runs[0].terminal, record.reward) == ("time", "time", 0.5)


class TestAgents:
    async def test_interleaved_agents_talk_by_turns(self) -> None:
        heard: list[str] = []

        class Simulated(Yes):
            agents = {"main": Agent(system="Help."), "user": Agent(train=False)}

            async def run(self, task: Task, ep: Episode) -> None:
                async with ep["user"].open(task) as user, ep["main"].open() as side:
                    for _ in range(2):
                        heard.append((await side.say((await user.say()).text)).text)

        record = await play(Simulated(), Says(by_agent={"main": ["a", "yes"], "user": ["hi", "more"]}))
        assert heard == ["a", "yes"]
        assert record.reward == 1.0
        assert [(run.agent, run.turns) for run in record.agent_runs] == [("user", 2), ("main", 2)]

    async def test_members_share_the_tasks_generator_and_have_their_own(self) -> None:
        drawn: list[tuple[float, float]] = []

        class Draws(Yes):
            def setup(self, task: Task, ep: Episode) -> None:
                drawn.append((task.rng.random(), ep.rng.random()))

        task = Task("Say yes.", answer="yes")
        for member in (0, 1, 0):
            await run_episode(Draws(), lease(task, member=member), Says("yes"))
        assert drawn[0] == drawn[2]
        assert drawn[0][0] == drawn[1][0]
        assert drawn[0][1] != drawn[1][1]

    async def test_state_is_fresh_for_each_episode(self) -> None:
        class Counts(Yes):
            class State:
                n = 0

            def setup(self, task: Task, ep: Episode) -> None:
                ep.state.n += 1

            def reward(self, task: Task, ep: Episode) -> float:
                return float(ep.state.n)

        env = Counts()
        assert [(await play(env, Says("x"))).reward for _ in range(2)] == [1.0, 1.0]

    async def test_unknown_agents_and_tools_are_named(self) -> None:
        class Typo(Yes):
            agents = {"solver": Agent(tools=["ping"])}

            async def run(self, task: Task, ep: Episode) -> None:
                await ep["slover"].run(task)

        assert "no agent 'slover'. Did you mean 'solver'?" in (await play(Typo(), Says("x"))).errors[0].message
        with pytest.raises(EnvError, match=r"no tool 'pin'\. Did you mean 'ping'"):
            Ping().tools(["pin"])

    async def test_one_failure_among_many_cancels_the_others_and_is_the_cause(self) -> None:
        cancelled: list[int] = []

        class Fails(Yes):
            async def run(self, task: Task, ep: Episode) -> None:
                async def wait(n: int) -> None:
                    try:
                        await anyio.sleep_forever()
                    finally:
                        cancelled.append(n)

                async def fail() -> None:
                    await anyio.lowlevel.checkpoint()
                    raise ZeroDivisionError("one of them")

                await ep.all([wait(0), fail(), wait(2)])

        record = await play(Fails(), Says("x"))
        assert (record.errors[0].kind, record.errors[0].message) == ("ZeroDivisionError", "run: ZeroDivisionError: one of them")
        assert sorted(cancelled) == [0, 2]

    async def test_agent_is_short_for_one_main_agent(self) -> None:
        class Short(Yes):
            agent = Agent(system="Be brief.")

        model = Says("yes")
        assert (await play(Short(), model)).reward == 1.0
        assert (model.requests[0].agent, Short().opening(Task("hi"))[0].content) == ("main", "Be brief.")

    @pytest.mark.parametrize(
        ("options", "split", "refused"),
        [
            ({"top_p": 0.9}, "train", True),
            ({"temperature": 0}, "train", True),
            ({"temperature": 0}, "eval", False),
            ({"temperature": 0.5}, "train", False),
        ],
    )
    async def test_sampling_that_cannot_be_trained_is_refused(self, options: dict[str, float], split: str, refused: bool) -> None:
        class Greedy(Yes):
            agent = Agent(sampling=SamplingOptions(**options))

        model = Says("yes")
        record = await run_episode(Greedy(), lease(Task("Say yes.", answer="yes"), split=split), model)
        assert bool(record.errors) == refused
        assert [request.sampling for request in model.requests] == ([] if refused else [Greedy.agent.sampling])

    async def test_openai_needs_a_served_model(self) -> None:
        class Own(Yes):
            async def run(self, task: Task, ep: Episode) -> None:
                await ep["main"].openai()

        assert "not served over HTTP" in (await play(Own(), Says("x"))).errors[0].message


async def test_assigning_to_a_serving_environment_is_refused() -> None:
    class Leaks(Yes):
        def setup(self, task: Task, ep: Episode) -> None:
            self.current = task

    env = Leaks()
    env.before = 1  # type: ignore[attr-defined]
    env.serve()
    message = (await play(env, Says("x"))).errors[0].message
    assert "Leaks.current was assigned to while episodes run" in message
    assert "ep.state.current" in message


async def test_leaked_threads_are_counted_until_they_return() -> None:
    release, calls = threading.Event(), Calls()
    with pytest.raises(EnvError, match=r"setup took longer than 0\.05 s"):
        await calls("setup", release.wait, 20, deadline_s=0.05)
    assert calls.leaked == ("setup",)
    release.set()
    await calls("anything", threading.Event().is_set, deadline_s=10)
    with anyio.fail_after(10):
        while calls.leaked:
            await anyio.lowlevel.checkpoint()
