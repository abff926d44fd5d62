"""An environment: gives tasks, sets up, runs agents, grades. Subclass it and write `tasks` and `reward`; the rest has defaults.

One instance serves many episodes at once, so what belongs to an episode lives in `ep.state`; assigning to the environment itself after
`start()` is refused, because it would be shared by accident.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentrl.config import did_you_mean
from agentrl.env.agent import Agent
from agentrl.env.config import EnvConfig
from agentrl.env.limits import Bounds, bounds
from agentrl.env.rows import read_rows
from agentrl.env.task import Task
from agentrl.env.tool import Tool, is_tool
from agentrl.episode import ChatMessage
from agentrl.errors import EnvError

if TYPE_CHECKING:
    from agentrl.env.episode import Episode

Split = Literal["train", "eval"]


class Env:
    """Base of every environment. Hooks may be sync (they run in threads) or async; all have deadlines."""

    Config: ClassVar[type[EnvConfig]] = EnvConfig
    """Your settings: `class Config(EnvConfig, frozen=True)`; on the command line `--env.key value`."""
    State: ClassVar[type] = type("State", (), {})
    """Made anew for each episode, without arguments: `ep.state`."""
    agents: Mapping[str, Agent] = {"main": Agent()}
    """By name, the main one first. `agent = Agent(…)` is short for {"main": Agent(…)}."""
    weights: Mapping[str, float] = {}
    """Of a reward's components; one without a weight weighs 1, and 0 makes it a metric."""
    version: str = "0"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "agent" in cls.__dict__:
            cls.agents = {"main": cls.__dict__["agent"]}

    def __init__(self, config: EnvConfig | None = None) -> None:
        self.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        if not self.agents:
            raise EnvError(f"{type(self).__name__}.agents is empty; leave it out for one main agent")
        self.config: Any = self.Config() if config is None else config
        members = dict.fromkeys(name for cls in reversed(type(self).__mro__) for name in vars(cls))
        self._tools = {name: Tool(getattr(self, name)) for name in members if is_tool(getattr(type(self), name, None))}

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_serving") and name != "_serving":
            raise EnvError(
                f"{type(self).__name__}.{name} was assigned to while episodes run: they share the environment. "
                f"Put it in a `class State` and use ep.state.{name}, or assign it in start()"
            )
        super().__setattr__(name, value)

    def serve(self, on: bool = True) -> None:
        """From now on episodes share this object, until it is called again with False."""
        self._serving = on

    def bounds(self, task: Task) -> Bounds:
        """Of an episode of this task as a whole: set-up, run and reward."""
        return bounds(next(iter(self.agents.values())).limits, task.limits, self.config.limits)

    def episode_s(self, task: Task) -> float:
        """The longest that an episode of this task may take, teardown included."""
        limit = self.bounds(task)
        return limit.setup_s + limit.run_s + limit.reward_s + limit.setup_s

    def tools(self, names: Literal["all"] | list[str] = "all") -> list[Tool]:
        """Raises EnvError for a name that no @tool has."""
        for name in [] if names == "all" else names:
            if name not in self._tools:
                raise EnvError(f"{self.name} has no tool {name!r}.{did_you_mean(name, self._tools)}")
        return [self._tools[name] for name in (self._tools if names == "all" else names)]

    def opening(self, task: Task, agent: str = "main") -> list[ChatMessage]:
        """The conversation before the agent's first turn, as `run` makes it."""
        return task.opening(self.agents[agent].system)

    def rows(self, split: Split) -> Iterator[dict[str, Any]]:
        """The rows of config `data`."""
        return read_rows(self.config.data, split)

    # What an environment defines.

    def tasks(self, split: Split) -> Iterable[Task] | AsyncIterator[Task]:
        """The same tasks in the same order each time; may stream, may be infinite. "train" and "eval" have no task in common."""
        raise EnvError(f"{type(self).__name__} gives no tasks: define tasks(self, split) and yield Task(…)")

    def start(self) -> Any:
        """Once per worker, before the first episode."""

    def stop(self) -> Any:
        """Once per worker, after the last episode."""

    def setup(self, task: Task, ep: "Episode") -> Any:
        """Before `run`."""

    def teardown(self, task: Task, ep: "Episode") -> Any:
        """After everything, always: also when setup failed or the episode was cancelled."""

    async def run(self, task: Task, ep: "Episode") -> Any:
        """The main agent's tool loop."""
        await ep[next(iter(self.agents))].run(task)

    def reward(self, task: Task, ep: "Episode") -> Any:
        """A finite number, named finite numbers, or None to leave the episode out of training. For every trained run without a reward."""

    def control_reward(self, task: Task, turns: int) -> float | None:
        """What a policy without the skill would earn in so many turns, such as by trying at random; curves are drawn beside it."""
        return None

    def demonstrations(self, task: Task, rng: Random) -> list[ChatMessage] | None:
        """A whole conversation that solves the task more or less well, tool results included, for warm starts; None: there is none."""
        return None

    def gold(self, task: Task, rng: Random) -> str | list[ChatMessage] | None:
        """The right final answer, or a whole conversation that earns the full reward; None: unknown. Default: the demonstration."""
        return self.demonstrations(task, rng)
