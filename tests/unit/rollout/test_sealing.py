"""What becomes of posted and of lost episodes at the gateway, and what is told of a sealed one."""

from collections.abc import Callable

import anyio

from agentrl.episode import EpisodeKey, EpisodeRecord, Sealed, TokenStats
from agentrl.errors import GatewayError
from agentrl.ledger import Ledger
from agentrl.ledger.entry import Done, Running
from agentrl.rollout.observer import Observer
from agentrl.rollout.sealing import Sealing, _event
from agentrl.rollout.work import WorkList


class Books:
    """A gateway's control side: what happens while it seals is the test's choice."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None, *, fails: bool = False) -> None:
        self._meanwhile = meanwhile
        self._fails = fails
        self.discarded: list[str] = []

    async def seal(self, record: EpisodeRecord) -> Sealed:
        self._meanwhile()
        if self._fails:
            raise GatewayError("no answer")
        return Sealed(episode=record.id, handle="h")

    async def discard(self, episode: str) -> None:
        self.discarded.append(episode)
        raise GatewayError("no answer")


def posted() -> tuple[Ledger, WorkList, EpisodeRecord]:
    """One episode, posted and not sealed."""
    ledger = Ledger.in_memory()
    work = WorkList(ledger, seed=0, retries=0, on_closed=lambda group: None, observer=Observer())
    work.issue("train", 0, 0, {"id": "t"}, size=1)
    taken = work.take()
    assert taken is not None
    ledger.record(Running(taken.episode, "w"))
    ledger.record(Done(taken.episode, "finished"))
    return ledger, work, EpisodeRecord(id=taken.episode, key=taken.key, split="train", env="x", env_version="1", task={})


async def settle(ledger: Ledger, work: WorkList, books: Books, record: EpisodeRecord) -> None:
    settled = anyio.Event()
    sealing = Sealing(ledger, work, books, on_settled=settled.set, observer=Observer(), pause_s=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sealing.run)
        sealing.take("w", record)
        with anyio.fail_after(20):
            await settled.wait()
        tasks.cancel_scope.cancel()


async def test_a_posted_episode_is_scored_once_it_is_sealed() -> None:
    ledger, work, record = posted()
    await settle(ledger, work, Books(), record)
    assert ledger.state.episodes[record.id].status == "scored"


async def test_what_was_given_up_while_it_was_sealed_stays_so() -> None:
    for fails in (False, True):
        ledger, work, record = posted()
        await settle(ledger, work, Books(work.interrupt_all, fails=fails), record)
        assert ledger.state.episodes[record.id].reason == "interrupted"


async def test_the_gateway_forgets_what_was_lost() -> None:
    ledger, work, _ = posted()
    books = Books()
    sealing = Sealing(ledger, work, books, on_settled=lambda: None, observer=Observer())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sealing.run)
        for episode in ("a", "b"):
            sealing.forget(episode)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert books.discarded == ["a", "b"]


def test_an_episodes_event_adds_up_its_agent_runs() -> None:
    record = EpisodeRecord(id="e", key=EpisodeKey(0, "t", 0), split="train", env="x", env_version="1", task={}, reward=0.5)
    runs = {
        "e.a0": TokenStats(turns=2, sampled=10, versions={3: 6}, untrainable={"stop": 1, "abort": 3}, placements={"root": 1, "exact": 1}),
        "e.b1": TokenStats(turns=1, sampled=4, versions={3: 2}, untrainable={"stop": 2}, placements={"root": 1}),
    }
    event = _event("w", record, Sealed(episode="e", handle="h", nbytes=1, runs=runs))
    assert (event.turns, event.sampled_tokens) == (3, 14)
    assert event.placements == {"root": 2, "exact": 1}
    assert event.untrainable == {"stop": 3, "abort": 3}
