"""The figure of the whole path is made of a run that comes to its end."""

import sys

import pytest

from agentrl.bench.whole_path import whole_path


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.skipif(sys.platform != "linux", reason="CPU time of another process is read from /proc")
async def test_every_process_of_the_path_is_counted():
    shares = await whole_path(steps=1)
    assert min(shares.worker, shares.gateway, shares.controller) > 0
    assert shares.total == shares.worker + shares.gateway + shares.controller
