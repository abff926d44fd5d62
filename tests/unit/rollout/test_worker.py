"""A worker against a controller that is slow, failing or watching; the gateway is the true one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pytest
from aiohttp import web

from agentrl import Env, Episode, Limits, Task, tool
from agentrl.engine.config import SamplingConfig
from agentrl.episode import EpisodeRecord
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.wire import EpisodeDone, Heartbeat, HeartbeatReply, Lease, LeaseReply, LeaseRequest, TaskPage, TaskRequest
from agentrl.rollout.worker import work
from agentrl.testing.gateway import CONTROL_TOKEN, scripted_gateway
from tests.unit.env.stage import lease

PATIENCE_S = 30


class Office:
    """A controller in a thread of its own: it speaks also while the worker's loop is held."""

    def __init__(self) -> None:
        self.replies: Queue[LeaseReply] = Queue()
        self.done: Queue[EpisodeDone] = Queue()
        self.pages: Queue[TaskPage] = Queue()
        self.beats: list[Heartbeat] = []
        self.requests: list[LeaseRequest] = []
        self.cancel: tuple[str, ...] = ()
        self.failures = 0
        """Posts of done to answer with 503 first."""
        self.refuse = False
        self.on_beat: Callable[[Heartbeat], None] = self.beats.append

    def lease(self, *leases: Lease) -> None:
        self.replies.put(LeaseReply(leases=leases))

    def stop(self) -> None:
        self.replies.put(LeaseReply(stop=True))

    async def record(self) -> EpisodeRecord:
        return (await anyio.to_thread.run_sync(lambda: self.done.get(timeout=PATIENCE_S))).record

    @contextmanager
    def open(self) -> Iterator[str]:
        app = web.Application()
        app.add_routes([web.post(f"/worker/{name}", getattr(self, f"_{name}")) for name in ("lease", "done", "tasks", "heartbeat")])
        with anyio.from_thread.start_blocking_portal() as portal:
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            portal.call(runner.setup)
            portal.call(web.TCPSite(runner, "127.0.0.1", 0).start)
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                portal.call(runner.cleanup)

    async def _lease(self, http: web.Request) -> web.Response:
        self.requests.append(msgspec.msgpack.decode(await http.read(), type=LeaseRequest))
        try:
            reply = await anyio.to_thread.run_sync(lambda: self.replies.get(timeout=0.05), abandon_on_cancel=True)
        except Empty:
            reply = LeaseReply()
        return packed(reply)

    async def _done(self, http: web.Request) -> web.Response:
        message = msgspec.msgpack.decode(await http.read(), type=EpisodeDone)
        if self.refuse:
            return web.Response(status=409, text="that lease is over")
        if self.failures:
            self.failures -= 1
            return web.Response(status=503)
        self.done.put(message)
        return packed({})

    async def _tasks(self, http: web.Request) -> web.Response:
        self.pages.put(msgspec.msgpack.decode(await http.read(), type=TaskPage))
        return packed({})

    async def _heartbeat(self, http: web.Request) -> web.Response:
        assert http.headers["Authorization"] == f"Bearer {CONTROL_TOKEN}"
        self.on_beat(msgspec.msgpack.decode(await http.read(), type=Heartbeat))
        return packed(HeartbeatReply(cancel=self.cancel))


def packed(value: Any) -> web.Response:
    return web.Response(body=msgspec.msgpack.encode(value))


class Desk(Env):
    started = stopped = 0
    release = threading.Event()

    def start(self) -> None:
        self.started += 1

    def stop(self) -> None:
        self.stopped += 1

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split} {n}") for n in range(3)]

    async def run(self, task: Task, ep: Episode) -> None:
        if task.prompt == "wait":
            await anyio.sleep_forever()
        await super().run(task, ep)

    @tool
    async def hold(self) -> str:
        """Holds the event loop until it is seen."""
        return "seen" if self.release.wait(PATIENCE_S) else "unseen"

    @tool
    def spin(self) -> None:
        """Holds a thread until it is seen."""
        while not self.release.is_set():
            pass

    def reward(self, task: Task, ep: Episode) -> float:
        return float(ep.text == "yes")


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def env() -> Desk:
    Desk.release.clear()
    return Desk()


def call(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 (it is another thread that makes it true)
            await anyio.sleep(0.01)


async def working(folder: Path, office: Office, env: Env, script: list[str], then: Callable[[], Any], *, concurrency: int = 4) -> None:
    """A worker at work while `then` goes on; afterwards it is told to stop."""
    config = RolloutConfig(concurrency=concurrency, heartbeat_s=0.05)
    with office.open() as url:
        async with scripted_gateway(folder, script) as policy, anyio.create_task_group() as tasks:

            async def worker() -> None:
                await work(
                    env,
                    controller=url,
                    gateway=policy.url,
                    token=CONTROL_TOKEN,
                    worker="w1",
                    config=config,
                    sampling=SamplingConfig(),
                )

            with anyio.fail_after(2 * PATIENCE_S):
                tasks.start_soon(worker)
                await then()
                office.stop()


async def test_leased_episodes_are_run_and_their_records_posted(tmp_path: Path, office: Office, env: Desk) -> None:
    async def then() -> None:
        office.lease(*(lease(Task("Say yes."), id=f"l{n}", member=n) for n in range(6)))
        records = [await office.record() for _ in range(6)]
        assert {record.reward for record in records} == {1.0}
        assert {record.id for record in records} == {f"e-l{n}" for n in range(6)}

    await working(tmp_path, office, env, ["yes"] * 6, then)
    assert office.requests[0].capacity == 4
    assert (env.started, env.stopped) == (1, 1)


async def test_a_record_is_posted_until_the_controller_answers(tmp_path: Path, office: Office, env: Desk) -> None:
    async def then() -> None:
        office.failures = 3
        office.lease(lease(Task("Say yes.")))
        assert (await office.record()).reward == 1.0

    await working(tmp_path, office, env, ["yes"], then)
    assert office.done.empty()


async def test_a_refused_record_frees_its_place(tmp_path: Path, office: Office, env: Desk) -> None:
    async def then() -> None:
        office.refuse = True
        office.lease(lease(Task("Say yes."), id="late"))
        office.lease(lease(Task("Say yes."), id="next"))
        await until(lambda: sum(request.capacity == 1 for request in office.requests) >= 3)
        office.refuse = False
        office.lease(lease(Task("Say yes."), id="last"))
        assert (await office.record()).id == "e-last"

    await working(tmp_path, office, env, ["yes"] * 3, then, concurrency=1)


async def test_a_withdrawn_lease_is_cancelled(tmp_path: Path, office: Office, env: Desk) -> None:
    async def then() -> None:
        office.lease(lease(Task("wait"), id="w"))
        office.cancel = ("w", "unknown")
        assert (await office.record()).terminal == "cancelled"

    await working(tmp_path, office, env, [], then)


async def test_tasks_are_streamed(tmp_path: Path, office: Office, env: Desk) -> None:
    async def then() -> None:
        office.replies.put(LeaseReply(tasks=(TaskRequest(id="p", split="eval", epoch=0, start=1, count=9, deadline_s=20),)))
        page = await anyio.to_thread.run_sync(lambda: office.pages.get(timeout=PATIENCE_S))
        assert ([task["prompt"] for task in page.tasks], page.end, page.request) == (["eval 1", "eval 2"], True, "p")

    await working(tmp_path, office, env, [], then)


async def test_a_held_loop_is_seen_with_its_stack_and_its_lease(tmp_path: Path, office: Office, env: Desk) -> None:
    held: list[Heartbeat] = []

    def watch(beat: Heartbeat) -> None:
        if beat.holder:
            held.append(beat)
            env.release.set()

    async def then() -> None:
        office.on_beat = watch
        office.lease(lease(Task("wait"), id="bystander"), lease(Task("Say yes."), id="guilty"))
        record = await office.record()
        assert (record.id, record.reward, record.tool_calls[0].result) == ("e-guilty", 1.0, "seen")

    await working(tmp_path, office, env, [call("hold"), "yes"], then)
    assert held[0].holder == "guilty"
    assert held[0].loop_lag_s > 1
    assert "self.release.wait(PATIENCE_S)" in held[0].stack
    assert {(beat.lease, beat.doing) for beat in held[0].leases} == {("bystander", "run"), ("guilty", "tool hold")}


async def test_a_thread_that_never_returns_is_reported(tmp_path: Path, office: Office, env: Desk) -> None:
    async def then() -> None:
        office.lease(lease(Task("Say yes.", limits=Limits(tool_s=0.1))))
        record = await office.record()
        assert (record.reward, record.tool_calls[0].error) == (1.0, "tool spin took longer than 0.1 s")
        await until(lambda: any(beat.leaked == ("tool spin",) for beat in office.beats))
        env.release.set()

    await working(tmp_path, office, env, [call("spin"), "yes"], then)


async def test_an_environment_that_cannot_start_ends_the_worker(tmp_path: Path, office: Office) -> None:
    class Broken(Desk):
        def start(self) -> None:
            raise OSError("no data")

    with pytest.raises(BaseExceptionGroup) as failure:
        await working(tmp_path, office, Broken(), [], anyio.sleep_forever)
    assert "start: OSError: no data" in repr(failure.value)
