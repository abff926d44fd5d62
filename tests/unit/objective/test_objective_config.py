"""The section refuses what cannot train, with the fix."""

import pytest

from agentrl.config import build
from agentrl.errors import ConfigError
from agentrl.objective import ObjectiveConfig


@pytest.mark.parametrize(
    ("tree", "fix"), [({"clip_low": "0"}, "0.2"), ({"clip_low": 1.5}, "0.2"), ({"clip_high": -1}, "0.28"), ({"preset": "gspo"}, "preset")]
)
def test_nonsense_is_refused_with_a_value_that_works(tree, fix):
    with pytest.raises(ConfigError, match=fix):
        build(ObjectiveConfig, tree, where="objective")


def test_a_group_of_one_is_refused_where_rewards_are_compared():
    with pytest.raises(ConfigError, match=r"--objective\.preset reinforce"):
        ObjectiveConfig(preset="grpo").check_group_size(1)
    ObjectiveConfig(preset="reinforce").check_group_size(1)
