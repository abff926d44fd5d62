"""Settings of every test: hypothesis without a deadline (machines are shared), anyio on asyncio."""

import pytest
from hypothesis import settings

settings.register_profile("agentrl", deadline=None, max_examples=60)
settings.load_profile("agentrl")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
