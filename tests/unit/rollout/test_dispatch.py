"""Leases: given once, taken back in every way that a worker can fail, and blamed on whom it may concern."""

from typing import Any

import anyio
import pytest
import trio.testing

from agentrl.episode import EpisodeKey, EpisodeRecord
from agentrl.errors import EnvError
from agentrl.ledger import Group, Ledger
from agentrl.ledger.entry import Scored
from agentrl.rollout.bell import Bell
from agentrl.rollout.dispatch import Dispatcher, LeaseRules
from agentrl.rollout.observer import EpisodeEvent, Observer, WorkerEvent
from agentrl.rollout.wire import EpisodeDone, Heartbeat, Lease, LeaseBeat, LeaseRequest, TaskRequest
from agentrl.rollout.work import ATTEMPTS, FAILURES_IN_A_ROW, WorkList

LEASE_S = 100.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Log(Observer):
    def __init__(self) -> None:
        self.episodes: list[EpisodeEvent] = []
        self.workers: list[WorkerEvent] = []

    def episode(self, event: EpisodeEvent) -> None:
        self.episodes.append(event)

    def worker(self, event: WorkerEvent) -> None:
        self.workers.append(event)

    @property
    def reasons(self) -> list[tuple[str, str, bool]]:
        return [(event.episode, event.reason, event.again) for event in self.episodes]


class Desk:
    """A dispatcher over a list of work that the test fills."""

    def __init__(self, *, retries: int = 0) -> None:
        self.ledger = Ledger.in_memory()
        self.log = Log()
        self.bell = Bell()
        self.closed: list[Group] = []
        self.posted: list[str] = []
        self.lost: list[str] = []
        self.work = WorkList(self.ledger, seed=0, retries=retries, on_closed=self.closed.append, observer=self.log)
        self.dispatcher = Dispatcher(
            self.ledger,
            self.work,
            self,
            LeaseRules(lost_after_s=10, frozen_after_s=30, grace_s=5),
            lease_s=lambda task: LEASE_S,
            on_done=lambda worker, record: self.posted.append(record.id),
            on_lost=self.lost.append,
            observer=self.log,
            bell=self.bell,
        )
        self.dispatcher.open()

    def supply(self, room: int) -> None: ...

    def request(self) -> TaskRequest | None:
        return None

    def issue(self, task: str = "t", size: int = 3) -> None:
        self.work.issue("train", 0, self.ledger.state.next_index, {"id": task}, size=size)
        self.bell.ring()

    async def lease(self, worker: str = "w", capacity: int = 8, wait_s: float = 1.0) -> tuple[Lease, ...]:
        return (await self.dispatcher.lease(LeaseRequest(worker, capacity, wait_s))).leases

    def beat(self, *leases: Lease, worker: str = "w", lag_s: float = 0.0, holder: str = "", leaked: int = 0) -> tuple[str, ...]:
        beats = tuple(LeaseBeat(lease.id) for lease in leases)
        return self.dispatcher.heartbeat(Heartbeat(worker, beats, lag_s, "stack", holder, ("tool calc",) * leaked)).cancel

    def post(self, lease: Lease, worker: str = "w") -> bool:
        record = EpisodeRecord(id=lease.episode, key=lease.key, split="train", env="e", env_version="0", task=lease.task)
        return self.dispatcher.done(EpisodeDone(worker, lease.id, record))


async def test_a_lease_waits_for_work_and_no_longer_than_asked() -> None:
    desk = Desk()
    start = anyio.current_time()
    assert await desk.lease(wait_s=7.0) == ()
    assert anyio.current_time() - start == 7.0
    async with anyio.create_task_group() as tasks:

        async def later() -> None:
            await anyio.sleep(3)
            desk.issue()

        tasks.start_soon(later)
        leases = await desk.lease(wait_s=50.0)
    assert len(leases) == 3
    assert anyio.current_time() - start == 10.0


async def test_capacity_bounds_a_lease_and_no_episode_is_leased_twice() -> None:
    desk = Desk()
    desk.issue(size=5)
    first, second = await desk.lease("a", 2), await desk.lease("b", 8)
    assert [lease.key.member for lease in (*first, *second)] == [0, 1, 2, 3, 4]


async def test_members_share_a_group_seed_and_have_seeds_of_their_own() -> None:
    desk = Desk()
    desk.issue()
    leases = await desk.lease()
    assert len({lease.group_seed for lease in leases}) == 1
    assert len({lease.seed for lease in leases}) == 3


async def test_a_post_counts_once() -> None:
    desk = Desk()
    desk.issue()
    lease, *_ = await desk.lease()
    assert desk.post(lease)
    assert not desk.post(lease)
    assert desk.posted == [lease.episode]


async def test_a_lease_that_no_post_ends_expires_after_its_grace() -> None:
    desk = Desk()
    desk.issue(size=1)
    (lease,) = await desk.lease()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.dispatcher.watch)
        for _ in range(104):
            await anyio.sleep(1)
            desk.beat(lease)
        assert not desk.log.episodes
        await anyio.sleep(2)
        tasks.cancel_scope.cancel()
    assert desk.log.reasons == [(lease.episode, "expired", False)]
    assert desk.closed
    assert not desk.post(lease)
    assert desk.beat(lease) == (lease.id,)


async def test_a_silent_workers_episodes_are_leased_again_without_penalty() -> None:
    desk = Desk()
    desk.issue(size=2)
    await desk.lease("silent")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.dispatcher.watch)
        again = await desk.lease("other", wait_s=60.0)
        tasks.cancel_scope.cancel()
    assert [lease.key.attempt for lease in again] == [1, 1]
    assert {reason for _, reason, _ in desk.log.reasons} == {"lost"}
    assert all(member.faults == 0 for member in desk.ledger.state.episodes.values())
    assert [(event.worker, event.what) for event in desk.log.workers] == [("silent", "lost")]


async def test_a_frozen_worker_loses_all_and_its_holder_alone_is_blamed() -> None:
    desk = Desk()
    desk.issue(size=3)
    leases = await desk.lease()
    cancelled = desk.beat(*leases, lag_s=31.0, holder=leases[1].id)
    assert set(cancelled) == {lease.id for lease in leases}
    assert sorted(desk.log.reasons) == [
        (leases[0].episode, "released", True),
        (leases[1].episode, "frozen", False),
        (leases[2].episode, "released", True),
    ]
    assert [(event.worker, event.what, event.detail) for event in desk.log.workers] == [("w", "frozen", "stack")]
    assert desk.lost == [lease.episode for lease in leases]
    assert [lease.key.member for lease in await desk.lease("other")] == [0, 2]


async def test_the_blamed_is_issued_again_while_it_has_retries() -> None:
    desk = Desk(retries=1)
    desk.issue(size=1)
    for again in (True, False):
        (lease,) = await desk.lease()
        desk.beat(lease, lag_s=31.0, holder=lease.id)
        assert desk.log.reasons[-1] == (lease.episode, "frozen", again)
    assert [group.closed for group in desk.closed] == [True]


async def test_attempts_are_bounded_whoever_is_to_blame() -> None:
    desk = Desk()
    desk.issue(size=1)
    for attempt in range(ATTEMPTS):
        (lease,) = await desk.lease()
        assert lease.key.attempt == attempt
        desk.dispatcher.worker_lost("w", "killed")
    assert await desk.lease() == ()
    assert desk.log.reasons[-1][1:] == ("lost", False)


async def test_a_lease_whose_reply_was_lost_is_given_again() -> None:
    desk = Desk()
    desk.issue(size=2)
    known, unknown = await desk.lease()
    for _ in range(12):
        await anyio.sleep(1)
        desk.beat(known)
    assert desk.log.reasons == [(unknown.episode, "lost", True)]
    (again,) = await desk.lease()
    assert again.key == EpisodeKey(0, "t", 1, 1)


async def test_a_worker_of_leaked_threads_is_sent_home_when_it_is_idle() -> None:
    desk = Desk()
    desk.issue(size=2)
    (lease,) = await desk.lease(capacity=1)
    desk.beat(lease, leaked=8)
    reply = await desk.dispatcher.lease(LeaseRequest("w", 1, 1.0))
    assert (reply.leases, reply.stop) == ((), False)
    desk.post(lease)
    assert (await desk.dispatcher.lease(LeaseRequest("w", 1, 1.0))).stop
    assert len(await desk.lease("fresh")) == 1


async def test_after_stop_every_worker_is_sent_home() -> None:
    desk = Desk()
    async with anyio.create_task_group() as tasks:

        async def later() -> None:
            await anyio.sleep(3)
            desk.dispatcher.stop()

        tasks.start_soon(later)
        assert (await desk.dispatcher.lease(LeaseRequest("w", 1, 50.0))).stop
    assert (await desk.dispatcher.lease(LeaseRequest("w", 1, 50.0))).stop


async def test_withdrawn_leases_are_told_at_the_next_heartbeat() -> None:
    desk = Desk()
    desk.issue(size=1)
    (lease,) = await desk.lease()
    desk.dispatcher.withdraw_all()
    desk.work.interrupt_all()
    assert desk.beat(lease) == (lease.id,)
    assert not desk.post(lease)
    assert not desk.ledger.state.in_flight


async def test_an_environment_whose_every_episode_fails_ends_the_run_and_one_that_works_again_does_not() -> None:
    desk = Desk()

    async def fail_some(task: str, count: int) -> None:
        desk.issue(task, size=count)
        for _ in range(count):
            (lease,) = await desk.lease(capacity=1)
            desk.work.fail(lease.episode, "error", fault=True, detail="reward: ValueError: boom")

    await fail_some("a", FAILURES_IN_A_ROW - 1)
    desk.issue("good", size=1)
    (lease,) = await desk.lease()
    desk.post(lease)
    desk.ledger.record(Scored(lease.episode, "h", ()))
    desk.work.finished(lease.episode)
    await fail_some("b", FAILURES_IN_A_ROW - 1)
    with pytest.raises(EnvError, match=r"128 episodes in a row failed .* rejected as error: reward: ValueError: boom; try one"):
        await fail_some("c", 1)


async def test_workers_that_die_are_no_failures_of_the_environment() -> None:
    desk = Desk()
    desk.issue(size=FAILURES_IN_A_ROW)
    for _ in range(FAILURES_IN_A_ROW):
        (lease,) = await desk.lease(capacity=1)
        desk.work.fail(lease.episode, "lost", fault=False)
