"""The package's own names: all there, and nothing loaded before it is asked for."""

import subprocess
import sys

import pytest

from agentrl import testing


@pytest.mark.parametrize("name", testing.__all__)
def test_every_public_fake_can_be_imported_from_the_package(name: str) -> None:
    assert getattr(testing, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sayz'"):
        testing.Sayz  # noqa: B018


def test_playing_an_episode_loads_no_server() -> None:
    code = "import sys; from agentrl.testing import Says, play; print('aiohttp' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False", "False"]
