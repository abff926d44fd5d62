"""Tasks become groups once each, epoch after epoch."""

from typing import Any

import anyio
import pytest
import trio.testing

from agentrl.episode import ErrorRecord
from agentrl.errors import EnvError
from agentrl.ledger import Ledger
from agentrl.rollout.admission import Admission
from agentrl.rollout.observer import Observer
from agentrl.rollout.policy import Progress, Window
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.tasks import TRIES
from agentrl.rollout.wire import TaskPage
from agentrl.rollout.work import WorkList


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def setting(ledger: Ledger, *, groups: int = 100) -> tuple[Admission, WorkList]:
    work = WorkList(ledger, seed=0, retries=0, on_closed=lambda group: None, observer=Observer())
    schedule = Schedule(steps=1, groups_per_step=groups)

    def progress() -> Progress:
        state = ledger.state
        return Progress(
            schedule=schedule, unconsumed=state.unconsumed(), steps_made=state.steps_made, published_version=0, served_version=0
        )

    return Admission(ledger, work, Window(0), progress, group_size=2, page=4, deadline_s=10), work


def answer(admission: Admission, *ids: str, end: bool = False) -> None:
    request = admission.request()
    assert request is not None
    assert admission.accept(TaskPage("w", request.id, tuple({"id": task} for task in ids), end))


async def test_groups_are_issued_for_the_room_there_is() -> None:
    ledger = Ledger.in_memory()
    admission, work = setting(ledger)
    answer(admission, "a", "b", "c", "d")
    admission.supply(3)
    assert (work.waiting, ledger.state.next_index) == (4, 2)
    admission.supply(4)
    assert work.waiting == 4


async def test_the_policy_bounds_what_is_out() -> None:
    ledger = Ledger.in_memory()
    admission, work = setting(ledger, groups=3)
    answer(admission, "a", "b", "c", "d")
    admission.supply(100)
    assert work.waiting == 6


async def test_duplicates_are_refused_and_counted() -> None:
    ledger = Ledger.in_memory()
    admission, work = setting(ledger)
    answer(admission, "a", "a", "b", "a")
    admission.supply(100)
    assert (work.waiting, ledger.state.tally["refused duplicate"], ledger.state.next_index) == (4, 2, 4)


async def test_a_new_epoch_begins_when_the_split_ends() -> None:
    ledger = Ledger.in_memory()
    admission, _ = setting(ledger)
    answer(admission, "a", "b", end=True)
    admission.supply(100)
    assert (ledger.state.epoch, ledger.state.next_index) == (1, 0)
    answer(admission, "a", "b", end=True)
    admission.supply(100)
    assert sorted((group.epoch, group.task_id) for group in ledger.state.groups.values()) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


async def test_a_restart_asks_from_the_cursor_on() -> None:
    ledger = Ledger.in_memory()
    admission, _ = setting(ledger)
    answer(admission, "a", "b", "c", "d")
    admission.supply(3)
    again, _ = setting(ledger)
    request = again.request()
    assert request is not None
    assert (request.epoch, request.start) == (0, 2)


async def test_a_page_is_asked_for_once_and_again_when_it_does_not_come() -> None:
    admission, _ = setting(Ledger.in_memory())
    first = admission.request()
    assert first is not None
    assert admission.request() is None
    await anyio.sleep(12)
    second = admission.request()
    assert second is not None
    assert not admission.accept(TaskPage("w", first.id, ({"id": "late"},)))
    assert admission.accept(TaskPage("w", second.id, ({"id": "a"},)))


async def test_pages_that_never_come_end_the_run() -> None:
    admission, _ = setting(Ledger.in_memory())
    for _ in range(TRIES):
        assert admission.request() is not None
        await anyio.sleep(12)
    with pytest.raises(EnvError, match="did not give rows 0"):
        admission.request()


async def test_an_env_without_tasks_or_with_a_failure_is_said_plainly() -> None:
    admission, _ = setting(Ledger.in_memory())
    with pytest.raises(EnvError, match="gave no tasks"):
        answer(admission, end=True)
    admission, _ = setting(Ledger.in_memory())
    request = admission.request()
    assert request is not None
    with pytest.raises(EnvError, match="KeyError: 'prompt'"):
        admission.accept(TaskPage("w", request.id, error=ErrorRecord("tasks", "KeyError", "'prompt'")))


async def test_a_row_without_an_id_is_refused() -> None:
    admission, _ = setting(Ledger.in_memory())
    request = admission.request()
    assert request is not None
    with pytest.raises(EnvError, match="without an id"):
        admission.accept(TaskPage("w", request.id, ({"prompt": "?"},)))
