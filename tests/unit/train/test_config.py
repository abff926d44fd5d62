"""The section refuses nonsense with the fix; the learning rate by hand."""

import pytest

from agentrl.config import build
from agentrl.errors import ConfigError
from agentrl.train.config import TrainConfig
from agentrl.train.schedule import learning_rate


@pytest.mark.parametrize(
    ("tree", "fix"),
    [
        ({"steps": 0}, "use 1 or more"),
        ({"lr": "-1"}, "use 0 or more"),
        ({"lr": "nan"}, "use 0 or more"),
        ({"betas": "0.9,1.0"}, "such as 0.9,0.95"),
        ({"warmup_steps": -1}, "use 0 or more"),
        ({"minibatches": 40, "groups_per_step": 4, "group_size": 8}, "use fewer"),
        ({"shedule": "cosine"}, "Did you mean 'schedule'"),
        ({"schedule": "step"}, "schedule"),
    ],
)
def test_nonsense_is_refused_with_the_fix(tree, fix):
    with pytest.raises(ConfigError, match=fix):
        build(TrainConfig, tree, where="train")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_learning_rate_by_hand(schedule, expected):
    config = TrainConfig(lr=1.0, warmup_steps=2, steps=6, schedule=schedule)
    assert [learning_rate(config, step) for step in range(1, 7)] == pytest.approx(expected)


def test_a_run_has_one_seed():
    with pytest.raises(ConfigError, match=r"unknown option 'train\.seed'"):
        build(TrainConfig, {"seed": "3"}, where="train")


def test_a_run_shorter_than_its_warm_up_only_rises():
    config = build(TrainConfig, {"lr": "1.0", "warmup_steps": 8, "steps": 2, "schedule": "linear"}, where="train")
    assert [learning_rate(config, step) for step in (1, 2)] == [0.125, 0.25]
