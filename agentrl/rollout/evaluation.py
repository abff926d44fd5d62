"""Evaluation: held-out tasks, run by the same workers under the same leases, never trained.

The first one sees the initial weights alone: no batch is made before it ended. Later ones run beside training; their event says which
versions they saw. Each evaluation runs the same tasks with the same seeds, so that two of them differ by the policy and by sampling.
"""

from math import sqrt
from statistics import mean, stdev

import msgspec

from agentrl.errors import EnvError
from agentrl.ledger import Group, Ledger
from agentrl.ledger.entry import Evaluated
from agentrl.rollout.bell import Bell
from agentrl.rollout.observer import EvaluationEvent, Observer
from agentrl.rollout.tasks import TaskStream
from agentrl.rollout.wire import TaskPage, TaskRequest
from agentrl.rollout.work import WorkList


class TaskRewards(msgspec.Struct, frozen=True):
    """What one held-out task earned; failed samples are left out."""

    task_id: str
    rewards: tuple[float, ...]


class EvaluationResult(msgspec.Struct, frozen=True):
    """An evaluation and what it was made of."""

    event: EvaluationEvent
    tasks: tuple[TaskRewards, ...]

    def pass_at(self, k: int) -> float | None:
        """The chance that the best of k samples earns 1 or more, unbiased (arXiv:2107.03374), over tasks with at least k samples."""
        chances = []
        for task in self.tasks:
            n, c = len(task.rewards), sum(reward >= 1 for reward in task.rewards)
            if n >= k:
                missed = 1.0
                for at in range(k):
                    missed *= max(0, n - c - at) / (n - at)
                chances.append(1 - missed)
        return mean(chances) if chances else None


class Evaluator:
    """Runs evaluations, one at a time."""

    def __init__(
        self,
        ledger: Ledger,
        work: WorkList,
        *,
        tasks: int,
        samples: int = 1,
        page: int,
        deadline_s: float,
        observer: Observer,
        bell: Bell,
    ) -> None:
        """`tasks`: the first so many of the split, fewer if it has fewer. `samples`: episodes of each."""
        self._ledger = ledger
        self._work = work
        self._samples = samples
        self._observer = observer
        self._bell = bell
        self._stream = TaskStream("eval", 0, 0, page=min(page, tasks), supply=tasks, limit=tasks, deadline_s=deadline_s)
        self._open: set[int] = set()
        self._wanted = False

    def request(self) -> TaskRequest | None:
        """Tasks to ask a worker for; none before the first evaluation."""
        return self._stream.request() if self._wanted else None

    def accept(self, page: TaskPage) -> bool:
        """Whether the page was meant for this. Raises EnvError if `tasks("eval")` failed."""
        if not self._stream.answers(page):
            return False
        self._stream.accept(page)
        self._bell.ring()
        return True

    def closed(self, group: Group) -> None:
        """All samples of a task are terminal."""
        self._open.discard(group.number)
        self._bell.ring()

    async def evaluate(self, step: int) -> EvaluationResult:
        """Run the held-out tasks under whatever is served meanwhile."""
        await self._have_tasks()
        number = self._ledger.state.next_evaluation
        groups = []
        for task in self._stream.ready:
            groups.append(self._work.issue("eval", number, task.index, task.body, size=self._samples))
        self._open.update(groups)
        self._bell.ring()
        while self._open:
            await self._bell.wait()
        result = self._result(number, step, [self._ledger.state.groups[group] for group in groups])
        event = result.event
        self._ledger.record(Evaluated(number, step, event.reward, event.stderr, event.episodes, event.failed))
        self._observer.evaluation(event)
        return result

    async def _have_tasks(self) -> None:
        self._wanted = True
        self._bell.ring()
        while not self._stream.complete:
            await self._bell.wait()
        if not self._stream.ready:
            raise EnvError("tasks('eval') gave no tasks; give the env a held-out split, or set eval.tasks to 0")
        unique = {task.id: task for task in self._stream.ready}
        if len(unique) < len(self._stream.ready):
            self._stream.ready = type(self._stream.ready)(unique.values())

    def _result(self, number: int, step: int, groups: list[Group]) -> EvaluationResult:
        tasks = []
        versions: set[int] = set()
        for group in groups:
            scored = [member for _, member in sorted(group.members.items()) if member.status == "scored"]
            versions.update(version for member in scored for run in member.runs for version in run.versions)
            tasks.append(TaskRewards(group.task_id, tuple(member.reward for member in scored if member.reward is not None)))
        per_task = [mean(task.rewards) for task in tasks if task.rewards]
        episodes = sum(len(task.rewards) for task in tasks)
        event = EvaluationEvent(
            evaluation=number,
            step=step,
            reward=mean(per_task) if per_task else None,
            stderr=stdev(per_task) / sqrt(len(per_task)) if len(per_task) > 1 else 0.0,
            episodes=episodes,
            failed=len(groups) * self._samples - episodes,
            versions=(min(versions, default=-1), max(versions, default=-1)),
        )
        return EvaluationResult(event, tuple(tasks))
