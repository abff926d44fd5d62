"""Environments: tasks, tools, agents, episodes and rewards. No sockets here; sessions are injected."""

from agentrl.env.agent import Agent, BoundAgent, Side
from agentrl.env.call import Calls, Overtime
from agentrl.env.config import EnvConfig
from agentrl.env.env import Env, Split
from agentrl.env.episode import AgentRun, Episode, Root
from agentrl.env.gold import Gold, Script, Silent
from agentrl.env.lifecycle import live
from agentrl.env.limits import Bounds, Limits
from agentrl.env.load import installed, load, make
from agentrl.env.messages import assistant, tool_result, user
from agentrl.env.sampling import SamplingOptions
from agentrl.env.session import OpenSession, Reply, Session, SessionRequest
from agentrl.env.task import Task
from agentrl.env.tool import Tool, Toolbox, tool

__all__ = [
    "Agent",
    "AgentRun",
    "BoundAgent",
    "Bounds",
    "Calls",
    "Env",
    "EnvConfig",
    "Episode",
    "Gold",
    "Limits",
    "OpenSession",
    "Overtime",
    "Reply",
    "Root",
    "SamplingOptions",
    "Script",
    "Session",
    "SessionRequest",
    "Side",
    "Silent",
    "Split",
    "Task",
    "Tool",
    "Toolbox",
    "assistant",
    "installed",
    "live",
    "load",
    "make",
    "tool",
    "tool_result",
    "user",
]
