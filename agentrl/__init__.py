"""agentrl: train language-model agents by reinforcement learning on multi-turn episodes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.env import Agent, Env, EnvConfig, Episode, Limits, Task, tool
    from agentrl.episode import ChatMessage
    from agentrl.errors import ToolError
    from agentrl.rollout.isolated import isolated

__all__ = ["Agent", "ChatMessage", "Env", "EnvConfig", "Episode", "Limits", "Task", "ToolError", "isolated", "tool"]

_HOME = {"ChatMessage": "agentrl.episode", "ToolError": "agentrl.errors", "isolated": "agentrl.rollout.isolated"}


def __getattr__(name: str) -> Any:
    """Names of the user's seat, imported when first asked for: `import agentrl` itself costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME.get(name, "agentrl.env")), name)
