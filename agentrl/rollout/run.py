"""One leased episode, from the lease to its record. No server is needed: tests, `try` and the contract tests run it in process."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from agentrl.env import Calls, Env, OpenSession, Root, Task, live
from agentrl.env.lifecycle import describe, end
from agentrl.env.seed import generator
from agentrl.episode import EpisodeRecord, ErrorRecord
from agentrl.errors import AgentRLError, EnvError
from agentrl.rollout.wire import Lease

START_S = 600.0
"""For each of the environment's start and stop."""
log = logging.getLogger(__name__)


async def run_episode(env: Env, lease: Lease, open_session: OpenSession, *, calls: Calls | None = None) -> EpisodeRecord:
    """The record of an episode that ended, well or not."""
    return await LeasedEpisode(env, lease, open_session, calls=calls or Calls()).run()


@asynccontextmanager
async def served(env: Env, calls: Calls) -> AsyncIterator[None]:
    """Started, shared by episodes while the context is open, then stopped."""
    await calls("start", env.start, deadline_s=START_S)
    env.serve()
    try:
        yield
    finally:
        env.serve(False)
        with anyio.CancelScope(shield=True):
            try:
                await calls("stop", env.stop, deadline_s=START_S)
            except EnvError as failure:
                log.warning("%s", failure)


class LeasedEpisode:
    """An episode that a worker runs, and may be told to stop. Create it in the event loop that runs it: the lease's time starts now."""

    def __init__(self, env: Env, lease: Lease, open_session: OpenSession, *, calls: Calls) -> None:
        self.lease = lease
        self.root: Root | None = None
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + lease.deadline_s)
        self._env = env
        self._open_session = open_session
        self._calls = calls

    @property
    def doing(self) -> str:
        return self.root.activity if self.root else ""

    async def run(self) -> EpisodeRecord:
        try:
            root = self.root = self._start()
        except AgentRLError as failure:
            return self._stillborn(describe(failure, "task"))
        with self.scope:
            await live(self._env, root)
        if self.scope.cancelled_caught:
            self._cut(root)
        return root.record()

    def _start(self) -> Root:
        lease = self.lease
        return Root(
            id=lease.episode,
            key=lease.key,
            split=lease.split,
            env=self._env,
            task=Task.from_builtins(lease.task).seeded(lease.group_seed),
            rng=generator("episode", lease.seed),
            open_session=self._open_session,
            calls=self._calls,
        )

    def _cut(self, root: Root) -> None:
        """The lease ran out, or was withdrawn: what had no reward yet stays without."""
        overdue = anyio.current_time() >= self.scope.deadline
        end(root, "time" if overdue else "cancelled")
        root.terminal = "time" if overdue else "cancelled"
        message = f"the lease of {self.lease.deadline_s:g} s ran out" if overdue else "the lease was withdrawn"
        root.errors.append(ErrorRecord(where=root.activity, kind="LeaseEnded", message=message))

    def _stillborn(self, error: ErrorRecord) -> EpisodeRecord:
        lease = self.lease
        return EpisodeRecord(
            id=lease.episode,
            key=lease.key,
            split=lease.split,
            env=self._env.name,
            env_version=self._env.version,
            task=lease.task,
            terminal="error",
            errors=(error,),
        )
