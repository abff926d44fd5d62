"""Families of reasoning-gym: their own scorers decide, and no answer of a model can break them."""

import itertools

import pytest
from agentrl_reasoning_gym.env import final_answer

from agentrl.env import Env, Gold, Task, make
from agentrl.errors import ConfigError
from tests.unit.env.stage import Says, play


def first(env: Env, split: str = "train") -> Task:
    return next(iter(env.tasks(split)))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["leg_counting", "spell_backward", "gcd", "number_sorting", "prime_factorization", "letter_counting"])
async def test_gold_is_scored_by_the_familys_own_scorer(family: str) -> None:
    env = make("reasoning_gym", {"family": family})
    assert (await play(env, Gold(env), first(env))).reward == 1.0


async def test_an_answer_that_the_scorer_cannot_read_is_wrong_and_counted() -> None:
    env = make("reasoning_gym", {"family": "prime_factorization"})
    record = await play(env, Says("two times three"), first(env))
    assert (record.reward, record.metrics, record.errors) == (0.0, {"unreadable": 1.0}, ())


async def test_a_puzzle_that_is_another_one_here_is_not_graded() -> None:
    env = make("reasoning_gym", {"family": "gcd"})
    task = first(env)
    record = await play(env, Says("1"), task.prompted("another puzzle"))
    assert (record.terminal, record.reward) == ("error", None)
    assert "PYTHONHASHSEED" in record.errors[0].message


def test_settings_reach_the_family() -> None:
    env = make("reasoning_gym", {"family": "letter_counting", "settings": '{"min_words": 3, "max_words": 3}', "seed": "5"})
    assert env.config.settings == {"min_words": 3, "max_words": 3}
    assert first(env) != first(make("reasoning_gym", {"family": "letter_counting"}))
    with pytest.raises(ConfigError, match=r"refuses env\.settings"):
        make("reasoning_gym", {"family": "letter_counting", "settings": '{"min_words": 9, "max_words": 3}'})
    with pytest.raises(ConfigError, match=r"the stream's seed is env\.seed"):
        make("reasoning_gym", {"family": "letter_counting", "settings": '{"seed": 9}'})


def test_a_small_family_ends() -> None:
    env = make("reasoning_gym", {"family": "gcd", "settings": '{"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 5}'})
    tasks = [list(itertools.islice(env.tasks(split), 100)) for split in ("train", "eval")]  # type: ignore[arg-type]
    assert len(tasks[0]) + len(tasks[1]) == len({task.id for task in [*tasks[0], *tasks[1]]}) <= 25


def test_the_last_answer_tag_counts() -> None:
    assert final_answer("<answer>1</answer> no, <answer> 2\n</answer>.") == "2"
    assert final_answer(" 3 ") == "3"


def test_shots_open_every_conversation_and_are_not_trained_on() -> None:
    plain = [task for _, task in zip(range(6), make("reasoning_gym", {}).tasks("train"), strict=False)]
    env = make("reasoning_gym", {"shots": 2, "system": "Answer."})
    task = next(iter(env.tasks("train")))
    questions = [each.opening(None)[-1].content for each in plain]
    assert [message.content for message in task.opening(None)] == [
        "Answer.",
        questions[0],
        plain[0].answer,
        questions[1],
        plain[1].answer,
        questions[2],
    ]
    assert next(iter(env.tasks("eval"))).opening(None)[1].content == questions[0]
