"""Public fakes, for users' tests too: real implementations behind the true doors, imported when first asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.engine.scripted import Latency, Script, ScriptedEngine
    from agentrl.testing.episode import Says, play
    from agentrl.testing.gateway import ScriptedPolicy, scripted_gateway
    from agentrl.testing.model import byte_ids, write_byte_model

__all__ = ["Latency", "Says", "Script", "ScriptedEngine", "ScriptedPolicy", "byte_ids", "play", "scripted_gateway", "write_byte_model"]

_HOME = {
    "Latency": "agentrl.engine.scripted",
    "Says": "agentrl.testing.episode",
    "Script": "agentrl.engine.scripted",
    "ScriptedEngine": "agentrl.engine.scripted",
    "ScriptedPolicy": "agentrl.testing.gateway",
    "byte_ids": "agentrl.testing.model",
    "play": "agentrl.testing.episode",
    "scripted_gateway": "agentrl.testing.gateway",
    "write_byte_model": "agentrl.testing.model",
}


def __getattr__(name: str) -> Any:
    """A fake loads only what it needs: an episode in process no server, a byte model no engine."""
    if name not in _HOME:
        raise AttributeError(f"module 'agentrl.testing' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
