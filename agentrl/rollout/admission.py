"""Admission: streamed training tasks become groups, when a worker has room and the policy lets generation run ahead that far.

Groups are issued for a worker that waits, never in stock: what is issued late is sampled under newer weights.
"""

from collections.abc import Callable

from agentrl.errors import EnvError
from agentrl.ledger import Ledger
from agentrl.ledger.entry import EpochEnded, Refused
from agentrl.rollout.policy import Policy, Progress
from agentrl.rollout.tasks import StreamedTask, TaskStream
from agentrl.rollout.wire import TaskPage, TaskRequest
from agentrl.rollout.work import WorkList

DUPLICATES_IN_A_ROW = 1000
"""After so many the split is taken to repeat itself."""


class Admission:
    """Issues groups of the training split, epoch after epoch."""

    def __init__(
        self,
        ledger: Ledger,
        work: WorkList,
        policy: Policy,
        progress: Callable[[], Progress],
        *,
        group_size: int,
        page: int,
        deadline_s: float,
    ) -> None:
        self._ledger = ledger
        self._work = work
        self._policy = policy
        self._progress = progress
        self._group_size = group_size
        self._page = page
        self._deadline_s = deadline_s
        self._stream = self._from_cursor()
        self._duplicates = 0
        self.open = True
        """False: no more groups are issued; the run winds down."""

    def supply(self, room: int) -> None:
        """Issue groups until `room` episodes wait, the policy says no, or no task is at hand."""
        while self.open and self._work.waiting < room and self._policy.admits(self._progress()):
            task = self._next_task()
            if task is None:
                return
            self._work.issue("train", self._stream.epoch, task.index, task.body, size=self._group_size)

    def request(self) -> TaskRequest | None:
        """Tasks to ask a worker for."""
        return self._stream.request() if self.open else None

    def accept(self, page: TaskPage) -> bool:
        """Whether the page was meant for this. Raises EnvError if `tasks()` failed, gave nothing, or only repeats itself."""
        if not self._stream.answers(page):
            return False
        self._stream.accept(page)
        if self._stream.exhausted:
            self._next_epoch()
        return True

    def _next_task(self) -> StreamedTask | None:
        """The next task that is new in its epoch."""
        while self._stream.ready:
            task = self._stream.ready.popleft()
            if task.id not in self._ledger.state.seen:
                self._duplicates = 0
                return task
            self._refuse(task)
        if self._stream.exhausted:
            self._next_epoch()
        return None

    def _refuse(self, task: StreamedTask) -> None:
        self._ledger.record(Refused(self._stream.epoch, task.index, task.id, "duplicate"))
        self._duplicates += 1
        if self._duplicates >= DUPLICATES_IN_A_ROW:
            raise EnvError(
                f"tasks('train') gave {self._duplicates} tasks in a row that its epoch already had (the last is row {task.index}); "
                "end the iterator, so that a new epoch begins, or give equal tasks different ids"
            )

    def _next_epoch(self) -> None:
        tasks = self._stream.next_index
        if not self._ledger.state.seen:
            raise EnvError("tasks('train') gave no tasks; check the env's data")
        self._ledger.record(EpochEnded(self._stream.epoch, tasks))
        self._stream = self._from_cursor()

    def _from_cursor(self) -> TaskStream:
        state = self._ledger.state
        return TaskStream("train", state.epoch, state.next_index, page=self._page, supply=self._page // 2 + 1, deadline_s=self._deadline_s)
