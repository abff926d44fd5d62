"""An agent is a role in an environment: which model plays it, what it is told, which tools it has.

`Agent` is the frozen description; `ep["name"]` binds it to a live episode, and running it there makes a child episode with a session of
its own.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec

from agentrl.env.limits import Limits
from agentrl.env.loop import converse
from agentrl.env.messages import user
from agentrl.env.sampling import SamplingOptions
from agentrl.env.session import Reply, Session
from agentrl.env.task import Task
from agentrl.env.tool import Toolbox
from agentrl.errors import EnvError, LimitReached

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from agentrl.env.episode import AgentRun, Episode


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A role. `train=False` samples the policy without training on it."""

    model: str = "policy"
    """Or "openai/NAME": an outside model, through the gateway, never trained."""
    train: bool = True
    system: str | None = None
    tools: Literal["all"] | list[str] = "all"
    limits: Limits | None = None
    sampling: SamplingOptions | None = None

    @property
    def trained(self) -> bool:
        return self.train and self.model == "policy"


class BoundAgent:
    """An agent within an episode: `ep["main"]`."""

    def __init__(self, parent: "Episode", name: str, agent: Agent) -> None:
        self.parent = parent
        self.name = name
        self.agent = agent

    async def run(self, task: Task | str, *, source: "Episode | None" = None, group: str | None = None) -> "AgentRun":
        """To the end, with tools; a limit ends it too, see `.terminal`. Text asks the episode's own task in other words.

        `source` is the agent run whose words became this one's task. Rewards are compared among the runs of
        this agent on this task; `group` names a part of them that is compared by itself.
        """
        async with self._line(task, source, group) as (run, session, tools):
            try:
                await converse(run, session, tools)
            except LimitReached as limit:
                run.finish(limit.reason)
        return run

    @asynccontextmanager
    async def open(
        self, task: Task | str | None = None, *, source: "Episode | None" = None, group: str | None = None
    ) -> "AsyncIterator[Side]":
        """For agents that take turns with something else: `async with ep["main"].open() as side: turn = await side.say("Hello")`."""
        async with self._line(task, source, group) as (run, session, tools):
            yield Side(run, session, tools)

    async def openai(self, task: Task | str | None = None, *, source: "Episode | None" = None, group: str | None = None) -> "AsyncOpenAI":
        """A client on a session of its own, for loops written by hand. Its run is the last of `ep.children`; what it says is not seen here,
        so grade it by what you keep. Closed with the episode."""
        run, session = await self._start(task, source, group)
        if not session.base_url:
            raise EnvError(f"agent {self.name}: this model is not served over HTTP, so there is no openai() client; use run() or open()")
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=session.base_url, api_key=session.secret)
        run.root.closing(client.close)
        return client

    @asynccontextmanager
    async def _line(
        self, task: Task | str | None, source: "Episode | None", group: str | None
    ) -> "AsyncIterator[tuple[AgentRun, Session, Toolbox]]":
        run, session = await self._start(task, source, group)
        env, calls = run.root.env, run.root.calls
        tools = Toolbox(env.tools(self.agent.tools), calls=calls, tool_s=run.bounds.tool_s)
        try:
            yield run, session, tools
            run.finish("finished")
            run.doing("run")
        except LimitReached as limit:
            run.finish(limit.reason)
            raise
        finally:
            with anyio.move_on_after(5, shield=True):
                await session.close()

    async def _start(self, task: Task | str | None, source: "Episode | None", group: str | None) -> "tuple[AgentRun, Session]":
        run = self.parent.child(self.name, self.agent, task, source=source, group=group)
        return run, await run.root.open_session(run.request)


class Side:
    """One side of a conversation that is still going on."""

    def __init__(self, run: "AgentRun", session: Session, tools: Toolbox) -> None:
        self.episode = run
        self._session = session
        self._tools = tools

    async def say(self, words: str | None = None) -> Reply:
        """Add a user message (None: let the agent speak first) and let it answer, using its tools. Raises LimitReached."""
        if words is not None:
            self.episode.messages.append(user(words))
        return await converse(self.episode, self._session, self._tools)
