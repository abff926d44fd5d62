"""An env worker: leases episodes, runs many at once on one event loop, and posts their records.

The process is the unit that can be killed. Whatever user code does wrong, short of holding the loop, ends in a record; when the loop is
held, the heartbeat says so and the controller kills the worker.
"""

from collections import deque
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from agentrl.engine.config import SamplingConfig
from agentrl.env import Calls, Env
from agentrl.env.call import only
from agentrl.rollout.client import Door
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.heart import Heart, LoopWatch, episode_of, stack_of
from agentrl.rollout.link import Link, Refused, log
from agentrl.rollout.output import bounded_stdout
from agentrl.rollout.pages import TaskPages
from agentrl.rollout.run import LeasedEpisode, served
from agentrl.rollout.wire import EpisodeDone, Heartbeat, Lease, LeaseBeat, LeaseReply, LeaseRequest, TaskRequest

POLL_S = 10.0
TICK_S = 0.1
LAGGING_S = 1.0
"""A loop that has not turned for so long is looked at."""


async def work(
    env: Env, *, controller: str, gateway: str, token: str, worker: str, config: RolloutConfig, sampling: SamplingConfig
) -> None:
    """Until the controller says stop. Threads that outlived their deadline may remain: end the process without waiting for them."""
    calls = Calls()
    anyio.to_thread.current_default_thread_limiter().total_tokens = 8 * config.concurrency
    with bounded_stdout():
        async with (
            served(env, calls),
            Link(controller, token=token) as link,
            Door(gateway, token=token, sampling=sampling) as door,
        ):
            await Worker(env, link=link, door=door, calls=calls, name=worker, config=config).run()


class Worker:
    """What is running here."""

    def __init__(self, env: Env, *, link: Link, door: Door, calls: Calls, name: str, config: RolloutConfig) -> None:
        self._env = env
        self._link = link
        self._door = door
        self._calls = calls
        self._name = name
        self._config = config
        self._pages = TaskPages(env, calls=calls, worker=name)
        self._running: dict[str, LeasedEpisode] = {}
        self._withdrawn: deque[str] = deque()
        self._watch = LoopWatch()
        self._left = anyio.Event()

    async def run(self) -> None:
        heart = Heart(self._link, every_s=self._config.heartbeat_s, beat=self._beat, cancel=self._withdrawn.extend)
        try:
            with heart:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._tick)
                    await self._lease(tasks)
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            cause = only(failures)
            raise cause from cause.__cause__

    async def _lease(self, tasks: TaskGroup) -> None:
        while True:
            while (capacity := self._config.concurrency - len(self._running)) < 1:
                self._left = anyio.Event()
                await self._left.wait()
            request = LeaseRequest(worker=self._name, capacity=capacity, wait_s=POLL_S)
            reply = await self._link.post("/worker/lease", request, LeaseReply)
            if reply.stop:
                return
            for page in reply.tasks:
                tasks.start_soon(self._send_tasks, page)
            for lease in reply.leases:
                self._running[lease.id] = LeasedEpisode(self._env, lease, self._door, calls=self._calls)
                tasks.start_soon(self._run_lease, lease)

    async def _run_lease(self, lease: Lease) -> None:
        """The record is posted until the controller answers; an answer of "unknown lease" is an answer."""
        try:
            record = await self._running[lease.id].run()
            await self._post("/worker/done", EpisodeDone(worker=self._name, lease=lease.id, record=record))
        finally:
            del self._running[lease.id]
            self._left.set()

    async def _send_tasks(self, request: TaskRequest) -> None:
        await self._post("/worker/tasks", await self._pages.page(request))

    async def _post(self, path: str, message: Any) -> None:
        try:
            await self._link.post(path, message, dict)
        except Refused as refused:
            log.warning("%s", refused)

    async def _tick(self) -> None:
        """Shows that the loop turns, and does what the heart's thread heard."""
        while True:
            self._watch.turned()
            while self._withdrawn:
                episode = self._running.get(self._withdrawn.popleft())
                if episode is not None:
                    episode.scope.cancel()
            await anyio.sleep(TICK_S)

    def _beat(self) -> Heartbeat:
        """Called in the heart's thread."""
        running = list(self._running.values())
        lag_s = self._watch.lag_s
        frame = self._watch.frame() if lag_s > LAGGING_S else None
        held = episode_of(frame)
        return Heartbeat(
            worker=self._name,
            leases=tuple(LeaseBeat(lease=episode.lease.id, doing=episode.doing) for episode in running),
            loop_lag_s=lag_s,
            stack=stack_of(frame),
            holder=next((episode.lease.id for episode in running if episode.lease.episode == held), ""),
            leaked=self._calls.leaked,
        )
