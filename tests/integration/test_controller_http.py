"""Every route of the controller over real sockets, with the messages of `wire.py`."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
from aiohttp import web

from agentrl.engine.scripted import ScriptedEngine
from agentrl.episode import AgentRunRecord, EpisodeKey, EpisodeRecord, Sealed, TokenStats
from agentrl.errors import GatewayError
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Published, Served
from agentrl.ledger.feed import Batch, CheckpointReport, StepReport, Stop
from agentrl.objective import advantage_of
from agentrl.rollout.controller import Controller, ControlPlan
from agentrl.rollout.dispatch import LeaseRules
from agentrl.rollout.http import application, serve
from agentrl.rollout.policy import Window
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.sealer import GatewaySealer
from agentrl.rollout.wire import EpisodeDone, Heartbeat, HeartbeatReply, Lease, LeaseBeat, LeaseReply, LeaseRequest, TaskPage
from agentrl.weights.update import WeightUpdate

TOKEN = "the run's token"
LEASE = Lease("w/t0-000000-0", "t0-000000-0", EpisodeKey(0, "t", 0), "train", {}, 0, 0, 60.0)


class Books:
    """Seals whatever it gets: ten tokens of version 0 for each agent run."""

    async def seal(self, record: EpisodeRecord) -> Sealed:
        runs = {run.id: TokenStats(turns=1, sampled=10, versions={0: 10}) for run in record.agent_runs}
        return Sealed(record.id, f"{record.id}.blob", 1, runs)

    async def discard(self, episode: str) -> None: ...


class Caller:
    """Posts messages as workers and trainers do."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http, self.url = http, url

    async def __call__(self, path: str, message: Any, answer: Any = dict[str, Any]) -> Any:
        async with self.http.post(self.url + path, data=msgspec.msgpack.encode(message)) as reply:
            body = await reply.read()
            assert reply.status == 200, (reply.status, body)
            return msgspec.msgpack.decode(body, type=answer)


@pytest.fixture
def controller() -> Controller:
    ledger = Ledger.in_memory()
    ledger.record(Published(0), Served(0))
    plan = ControlPlan(schedule=Schedule(steps=1, groups_per_step=1), group_size=2, leases=LeaseRules(lost_after_s=60, frozen_after_s=60))
    return Controller(
        ledger,
        plan,
        Window(1),
        advantage_of("default"),
        sealer=Books(),
        engines={"engine": ScriptedEngine(lambda prompt: [1])},
        lease_s=lambda task: 60.0,
    )


@pytest.fixture
async def call(controller: Controller) -> AsyncIterator[Caller]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with serve(controller, token=TOKEN) as url, aiohttp.ClientSession(headers=headers) as http:
        yield Caller(http, url)


def record(lease: Lease, reward: float) -> EpisodeRecord:
    run = AgentRunRecord(f"{lease.episode}.main0", "main", lease.key.task_id, "0:t:main", reward=reward, turns=1)
    return EpisodeRecord(
        id=lease.episode, key=lease.key, split="train", env="e", env_version="0", task=lease.task, agent_runs=(run,), reward=reward
    )


async def test_a_whole_run_by_its_messages(controller: Controller, call: Caller) -> None:
    ends: list[str] = []

    async def run() -> None:
        ends.append(await controller.run())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            asked = await call("/worker/lease", LeaseRequest("w", 4, 5.0), LeaseReply)
            await call("/worker/tasks", TaskPage("w", asked.tasks[0].id, ({"id": "t", "prompt": "?"},), True))
            leased = await call("/worker/lease", LeaseRequest("w", 4, 5.0), LeaseReply)
            assert [lease.key.member for lease in leased.leases] == [0, 1]
            beats = (*(LeaseBeat(lease.id, "turn 1") for lease in leased.leases), LeaseBeat("w/never leased"))
            beat = await call("/worker/heartbeat", Heartbeat("w", beats, 0.0), HeartbeatReply)
            assert beat.cancel == ("w/never leased",)
            for reward, lease in enumerate(leased.leases):
                await call("/worker/done", EpisodeDone("w", lease.id, record(lease, float(reward))))
            batch = await call("/trainer/batch", {}, Batch | Stop)
            assert isinstance(batch, Batch)
            assert batch.minibatches[0].trained_tokens == 20
            await call("/trainer/step", StepReport(1, {"loss": 0.5}))
            await call("/trainer/ready", WeightUpdate(1, "shared", "payload", ()))
            assert isinstance(await call("/trainer/batch", {}, Batch | Stop), Stop)
            await call("/trainer/checkpoint", CheckpointReport(1, "checkpoints/1"))
        assert ends == ["finished"]
        assert (await call("/worker/lease", LeaseRequest("w", 4, 5.0), LeaseReply)).stop


async def test_a_late_post_is_a_409_that_says_why(controller: Controller, call: Caller) -> None:
    done = EpisodeDone("w", "w/unknown", record(LEASE, 0.0))
    async with call.http.post(f"{call.url}/worker/done", data=msgspec.msgpack.encode(done)) as reply:
        assert reply.status == 409
        assert "is not out any more" in await reply.text()


ROUTES = [f"/worker/{name}" for name in ("lease", "heartbeat", "done", "tasks")]
ROUTES += [f"/trainer/{name}" for name in ("batch", "step", "ready", "checkpoint")]


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_needs_the_token_and_a_message_of_its_kind(call: Caller, route: str) -> None:
    async with call.http.post(call.url + route, data=b"{}", headers={"Authorization": "Bearer wrong"}) as reply:
        assert reply.status == 401
    async with call.http.post(call.url + route, data=b"\xc1 not msgpack") as reply:
        assert reply.status == 400
        assert route in await reply.text()


async def test_bodies_are_bounded(controller: Controller) -> None:
    runner = web.AppRunner(application(controller, token=TOKEN, body_bytes=1000))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/worker/done"
        async with aiohttp.ClientSession(headers=headers) as http, http.post(url, data=bytes(2000)) as reply:
            assert reply.status == 413
    finally:
        await runner.cleanup()


async def test_a_version_used_before_ends_the_run(controller: Controller, call: Caller) -> None:
    failures: list[BaseException] = []

    async def run() -> None:
        try:
            await controller.run()
        except Exception as failure:
            failures.append(failure)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            for version, status in ((3, 200), (2, 409)):
                body = msgspec.msgpack.encode(WeightUpdate(version, "shared", "payload", ()))
                async with call.http.post(f"{call.url}/trainer/ready", data=body) as reply:
                    assert reply.status == status
    assert "versions are never reused" in str(failures[0])


async def test_sealing_speaks_the_gateways_control_routes() -> None:
    sealed = Sealed("t0-000000-0", "handle", 7, {})
    seen: list[tuple[str, str]] = []

    async def seal(request: web.Request) -> web.Response:
        got = msgspec.msgpack.decode(await request.read(), type=EpisodeRecord)
        seen.append((got.id, request.headers["Authorization"]))
        return web.Response(body=msgspec.msgpack.encode(sealed))

    async def discard(request: web.Request) -> web.Response:
        return web.Response(status=503, text="no disk")

    app = web.Application()
    app.add_routes([web.post("/control/seal", seal), web.post("/control/discard", discard)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with GatewaySealer(url, token=TOKEN) as sealer:
        assert await sealer.seal(record(LEASE, 1.0)) == sealed
        with pytest.raises(GatewayError, match="503: no disk"):
            await sealer.discard("e")
        await runner.cleanup()
        with pytest.raises(GatewayError, match="did not answer"):
            await sealer.seal(record(LEASE, 1.0))
    assert seen == [("t0-000000-0", f"Bearer {TOKEN}")]
