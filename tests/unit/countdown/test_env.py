import json
from random import Random

import pytest
from agentrl_countdown import Countdown, CountdownConfig

from agentrl.env import Limits, Script, SessionRequest, Task, assistant
from agentrl.episode import ChatMessage, EpisodeKey, EpisodeRecord, ToolCall
from agentrl.rollout.run import run_episode
from agentrl.rollout.wire import Lease

TASK = Task(prompt="Numbers: 3 4 5. Target: 17.", answer=17, data={"numbers": [3, 4, 5]})


def calc(expression: str) -> ChatMessage:
    return assistant(calls=[ToolCall(id="c", name="calc", arguments=json.dumps({"expression": expression}))])


async def play(*words: ChatMessage, env: Countdown | None = None) -> EpisodeRecord:
    async def model(request: SessionRequest) -> Script:
        return Script(request.agent_run, words)

    lease = Lease(
        id="lease",
        episode="episode",
        key=EpisodeKey(0, TASK.id, 0),
        split="train",
        task=TASK.to_builtins(),
        group_seed=1,
        seed=2,
        deadline_s=30,
    )
    return await run_episode(env or Countdown(), lease, model)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("3*4-5", "7, too low"),
        ("3+4*5", "23, too high"),
        ("3*4+5", "17, target reached"),
        ("3*4", "12, not with the given numbers"),
        ("4*3+5", "17, not with the given numbers"),
        ("3*4+", "Error: a number is missing"),
    ],
)
async def test_the_calculator_says_how_a_result_lies(expression: str, told: str) -> None:
    record = await play(calc(expression), assistant("3+4+5"))
    [call] = record.tool_calls
    assert (f"Error: {call.error}" if call.error else call.result) == told
    assert record.reward == 0.0


async def test_without_hints_the_calculator_says_the_value_alone() -> None:
    record = await play(calc("3*4-5"), assistant("3*4+5"), env=Countdown(CountdownConfig(hints=False)))
    assert record.tool_calls[0].result == "7"
    assert record.reward == 1.0


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("3*4+5", 1.0),
        ("(3 * 4) + 5 = 17", 1.0),
        ("It works out:\n3*4+5\n", 1.0),
        ("17", 0.0),
        ("3*4+5+0", 0.0),
        ("5+3*4", 0.0),
        ("3+4+5", 0.0),
        ("The answer is 3*4+5", 0.0),
        ("", 0.0),
    ],
)
async def test_the_reward_checks_value_and_numbers(answer: str, reward: float) -> None:
    assert (await play(assistant(answer))).reward == reward


def test_the_control_is_the_chance_of_a_hit_in_so_many_random_tries() -> None:
    # One of nine expressions of 3 4 5 comes to 17.
    assert Countdown().control_reward(TASK, 1) == pytest.approx(1 / 9)
    assert Countdown().control_reward(TASK, 3) == pytest.approx(1 - (8 / 9) ** 3)


def test_demonstrations_are_whole_conversations_that_keep_the_rules() -> None:
    env = Countdown(CountdownConfig(limits=Limits(turns=4)))
    rng = Random(0)
    earned = 0
    for task in [task for task, _ in zip(env.tasks("train"), range(300), strict=False)]:
        shown = env.demonstrations(task, rng)
        assert shown[: len(env.opening(task))] == env.opening(task)
        turns = [message for message in shown if message.role == "assistant"]
        assert len(turns) <= 4
        assert [bool(turn.tool_calls) for turn in turns] == [True] * (len(turns) - 1) + [False]
        assert len(shown) == len(env.opening(task)) + 2 * len(turns) - 1
        expressions = [turn.tool_calls[0].arguments for turn in turns[:-1]]
        assert len(set(expressions)) == len(expressions)
        earned += turns[-1].content in env._puzzles.hits(_puzzle(task))
    assert 90 < earned < 240


def test_demonstrations_repeat_by_seed() -> None:
    env = Countdown()
    assert env.demonstrations(TASK, Random(5)) == env.demonstrations(TASK, Random(5))


def _puzzle(task: Task):
    from agentrl_countdown.puzzle import Puzzle

    return Puzzle(numbers=tuple(task.data["numbers"]), target=task.answer)
