"""A live episode: a tree. The root is one run of one task; each agent run in it is a child with its own conversation, session and reward.

User code holds these objects while the episode lives; `record()` is what is left of it. Nothing here knows a token.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Any, Literal, TypeVar

import anyio
from msgspec import UNSET, UnsetType

from agentrl.config import did_you_mean
from agentrl.env.agent import Agent, BoundAgent
from agentrl.env.call import Calls, only
from agentrl.env.env import Env
from agentrl.env.limits import Bounds, bounds
from agentrl.env.reward import Score, is_number, score
from agentrl.env.sampling import SamplingOptions
from agentrl.env.session import OpenSession, SessionRequest
from agentrl.env.task import Task
from agentrl.episode import AgentRunRecord, ChatMessage, EpisodeKey, EpisodeRecord, ErrorRecord, Message, Terminal, ToolCallRecord
from agentrl.errors import EnvError

T = TypeVar("T")


class Episode:
    """One run of a task (`parent` is None) or one agent run inside it."""

    def __init__(self, *, id: str, task: Task, rng: Random, limits: Bounds, parent: "Episode | None" = None) -> None:
        self.id = id
        self.task = task
        self.rng = rng
        """Differs per member of a group; `task.rng` is equal for all."""
        self.bounds = limits
        self.parent = parent
        self.children: list[Episode] = []
        self.metrics: dict[str, float] = {}
        """Yours to fill: finite numbers, shown beside the reward."""
        self.terminal: Terminal | None = None
        self.stopped = False
        self._reward: Score | UnsetType = UNSET

    def stop(self) -> None:
        """Called by a tool on its `ep`: the agent run ends after this turn's calls."""
        self.stopped = True

    @property
    def root(self) -> "Root":
        raise NotImplementedError

    @property
    def state(self) -> Any:
        """The environment's `State`, fresh per episode and shared by all its agent runs."""
        return self.root.own_state

    @property
    def text(self) -> str:
        """The agent's last words: of this run, or for a root of its main run."""
        return next((message.content for message in reversed(self.messages) if message.role == "assistant"), "")

    @property
    def messages(self) -> list[ChatMessage]:
        raise NotImplementedError

    @property
    def reward(self) -> float | None:
        """None: unset, or masked. Set it to a finite number, named finite numbers, or None."""
        return None if isinstance(self._reward, UnsetType) else self._reward.total

    @reward.setter
    def reward(self, value: float | Mapping[str, float] | None) -> None:
        self._reward = score(value, self.root.env.weights, where="reward")

    @property
    def rewarded(self) -> bool:
        """Whether a reward, or None, was set."""
        return not isinstance(self._reward, UnsetType)

    @property
    def parts(self) -> dict[str, float]:
        """The reward's components, before weights."""
        return {} if isinstance(self._reward, UnsetType) else self._reward.parts

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are finite numbers; grading has recorded an error for any other."""
        return {str(name): float(value) for name, value in self.metrics.items() if is_number(value)}

    def give(self, earned: Score) -> None:
        """Set a checked reward."""
        self._reward = earned

    def __getitem__(self, name: str) -> BoundAgent:
        agents = self.root.env.agents
        if name not in agents:
            raise EnvError(f"{self.root.env.name} has no agent {name!r}.{did_you_mean(name, agents)}")
        return BoundAgent(self, name, agents[name])

    async def all(self, runs: Iterable[Awaitable[T]]) -> list[T]:
        """All at once, results in order. If one fails the others are cancelled and its exception is raised."""
        waiting = list(runs)
        results: list[Any] = [None] * len(waiting)

        async def one(index: int, run: Awaitable[T], ep: Episode) -> None:  # `ep` is on the stack for the watchdog
            results[index] = await run

        try:
            async with anyio.create_task_group() as tasks:
                for index, run in enumerate(waiting):
                    tasks.start_soon(one, index, run, self)
        except BaseExceptionGroup as failures:
            cause = only(failures)
            raise cause from cause.__cause__
        return results

    def child(self, name: str, agent: Agent, task: Task | str | None, *, source: "Episode | None", group: str | None) -> "AgentRun":
        """A new agent run, with the group key that its reward will be compared under."""
        root = self.root
        asked = task if isinstance(task, Task) else self.task.prompted(task)
        run = AgentRun(
            id=f"{root.id}.{name}{len(root.runs)}",
            task=asked,
            rng=Random(root.rng.getrandbits(63)),
            limits=bounds(agent.limits, asked.limits, root.env.config.limits),
            parent=self,
            agent=name,
            role=agent,
            source=source,
            group=root.group_key(name, asked, group),
        )
        root.runs.append(run)
        self.children.append(run)
        if source is not None:
            words = asked.prompt if isinstance(asked.prompt, str) else "\n".join(message.content for message in asked.prompt or [])
            root.edges.append(Message(source=source.id, target=run.id, text=words))
        return run


class AgentRun(Episode):
    """A child episode."""

    def __init__(
        self,
        *,
        id: str,
        task: Task,
        rng: Random,
        limits: Bounds,
        parent: Episode,
        agent: str,
        role: Agent,
        source: Episode | None,
        group: str,
    ) -> None:
        super().__init__(id=id, task=task, rng=rng, limits=limits, parent=parent)
        self.agent = agent
        self.role = role
        self.source = source
        self.group = group
        self.turns = 0
        self.tokens = 0
        """Sampled so far."""
        self._conversation = task.opening(role.system)

    @property
    def root(self) -> "Root":
        assert self.parent is not None
        return self.parent.root

    @property
    def messages(self) -> list[ChatMessage]:
        return self._conversation

    @property
    def minted(self) -> bool:
        """Whether its task was made inside the episode."""
        return self.task.id != self.root.task.id

    @property
    def request(self) -> SessionRequest:
        """Raises EnvError for sampling that cannot be trained."""
        sampling = (self.task.sampling or SamplingOptions()).over(self.role.sampling)
        if self.role.trained and self.root.split == "train":
            sampling.refuse_untrainable(self.agent)
        return SessionRequest(
            episode=self.root.id,
            agent_run=self.id,
            agent=self.agent,
            model=self.role.model,
            trained=self.role.trained,
            task=self.task,
            sampling=sampling,
            bounds=self.bounds,
        )

    def finish(self, terminal: Any) -> None:
        """The first reason counts."""
        self.terminal = self.terminal or terminal

    def doing(self, what: str) -> None:
        """What the watchdog and the live view see."""
        self.root.activity = what

    def record_call(self, call: ToolCallRecord) -> None:
        self.root.tool_calls.append(call)

    def record(self) -> AgentRunRecord:
        return AgentRunRecord(
            id=self.id,
            agent=self.agent,
            task_id=self.task.id,
            group=self.group,
            policy=self.role.model,
            trained=self.role.trained,
            source=self.source.id if self.source else None,
            terminal=self.terminal or "finished",
            reward=self.reward,
            rewards=self.parts,
            metrics=self.numbers,
            turns=self.turns,
        )


class Root(Episode):
    """The whole episode, with what its agent runs share."""

    def __init__(
        self,
        *,
        id: str,
        key: EpisodeKey,
        split: Literal["train", "eval"],
        env: Env,
        task: Task,
        rng: Random,
        open_session: OpenSession,
        calls: Calls,
    ) -> None:
        super().__init__(id=id, task=task, rng=rng, limits=env.bounds(task))
        self.key = key
        self.split = split
        self.env = env
        self.open_session = open_session
        self.calls = calls
        self.own_state: Any = None
        self.runs: list[AgentRun] = []
        """Of the whole tree, in the order of their start."""
        self.edges: list[Message] = []
        self.tool_calls: list[ToolCallRecord] = []
        self.errors: list[ErrorRecord] = []
        self.activity = ""
        self.started_at = time.time()
        self._closing: list[Callable[[], Awaitable[None]]] = []

    @property
    def root(self) -> "Root":
        return self

    @property
    def main(self) -> AgentRun | None:
        """The last run of the first agent, in the order of `agents`, that ran at all."""
        for name in self.env.agents:
            for run in reversed(self.runs):
                if run.agent == name:
                    return run
        return None

    @property
    def messages(self) -> list[ChatMessage]:
        return self.main.messages if self.main else []

    def group_key(self, agent: str, task: Task, group: str | None) -> str:
        """Equal for the runs of one agent on one task in one epoch; runs of a minted task are compared within their episode only.

        `group` parts an agent's runs further; two agents are never compared, whatever their groups are called.
        """
        scope = f"{self.key.epoch}:{self.task.id}" if task.id == self.task.id else f"{self.id}:{task.id}"
        return f"{scope}:{agent}" if group is None else f"{scope}:{agent}:{group}"

    def closing(self, close: Callable[[], Awaitable[None]]) -> None:
        """To be awaited when the episode ends."""
        self._closing.append(close)

    async def close(self) -> None:
        while self._closing:
            await self._closing.pop()()

    def record(self) -> EpisodeRecord:
        main = self.main
        return EpisodeRecord(
            id=self.id,
            key=self.key,
            split=self.split,
            env=self.env.name,
            env_version=self.env.version,
            task=self.task.to_builtins(),
            agent_runs=tuple(run.record() for run in self.runs),
            tool_calls=tuple(self.tool_calls),
            messages=tuple(self.edges),
            reward=main.reward if main else None,
            rewards=main.parts if main else {},
            metrics=self.numbers,
            terminal=self.terminal or "finished",
            errors=tuple(self.errors),
            started_at=self.started_at,
            ended_at=time.time(),
        )
