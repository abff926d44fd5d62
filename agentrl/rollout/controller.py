"""The controller: composes admission, dispatch, ledger, feed, evaluation and updates, and says when the run is over.

It owns no socket and no clock. The HTTP routes call its methods, one for each message of `wire.py`; simulations call the same ones.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Any

import anyio
import msgspec

from agentrl.engine.base import Engine
from agentrl.env.call import only
from agentrl.errors import ProcessError
from agentrl.ledger import Comparison, Group, Ledger
from agentrl.ledger.entry import Checkpointed, Ended, Published, Served, Trained
from agentrl.ledger.feed import Batch, CheckpointReport, StepReport, Stop
from agentrl.rollout.admission import Admission
from agentrl.rollout.bell import Bell
from agentrl.rollout.coordinator import OnUpdate, UpdateCoordinator, UpdateRules
from agentrl.rollout.dispatch import LONGEST_POLL_S, Dispatcher, LeaseRules
from agentrl.rollout.evaluation import EvaluationResult, Evaluator
from agentrl.rollout.feed import Feed
from agentrl.rollout.observer import Observer, StepEvent
from agentrl.rollout.policy import Policy, Progress
from agentrl.rollout.recovery import recover
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.sealing import Sealer, Sealing
from agentrl.rollout.wire import EpisodeDone, Heartbeat, HeartbeatReply, LeaseReply, LeaseRequest, TaskPage, TaskRequest
from agentrl.rollout.work import WorkList
from agentrl.weights.update import WeightUpdate


class Wind(StrEnum):
    """How a run ends early. DRAIN: episodes under lease finish first. NOW: they are given up, and a resume issues them again."""

    DRAIN = "drain"
    NOW = "now"


class ControlPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run that control needs, gathered from their sections."""

    schedule: Schedule
    group_size: int
    seed: int = 0
    retries: int = 0
    """Further attempts at an episode that failed by its own fault (`EnvConfig.retries`)."""
    on_update: OnUpdate = "keep"
    leases: LeaseRules
    updates: UpdateRules = UpdateRules()
    eval_tasks: int = 0
    """0: no evaluation."""
    eval_every: int = 0
    """Steps between evaluations; 0: only before the first step and after the last."""
    eval_samples: int = 1
    """Episodes of each held-out task."""
    task_page: int = 64
    task_deadline_s: float = 120.0
    drain_s: float = 600.0
    """The longest that a drain may take."""
    trainer_end_s: float = 600.0
    """From the last step (or the wish to stop) to the trainer's last checkpoint."""
    tend_s: float = 30.0
    """Between two moves of the journal's write-ahead log into its table; infinite under a virtual clock, which threads do not keep."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A reading for the live view."""

    steps_done: int
    steps: int
    epoch: int
    waiting: int
    """Episodes issued and not leased."""
    running: int
    """Leases out."""
    sealing: int
    open_groups: int
    ready_groups: int
    served_version: int
    published_version: int
    evaluating: bool
    tally: dict[str, int]
    """Episodes by what became of them: issued, done, scored, trained, "rejected REASON"; tasks "refused REASON"."""


class Controller:
    """One run's. `run` is the whole of it; the other methods answer messages."""

    def __init__(
        self,
        ledger: Ledger,
        plan: ControlPlan,
        policy: Policy,
        comparison: Comparison,
        *,
        sealer: Sealer,
        engines: dict[str, Engine],
        lease_s: Callable[[dict[str, Any]], float],
        observer: Observer | None = None,
    ) -> None:
        """`ledger`: resumed already if this is a resume, and with the version that the engines hold recorded as published and served.

        `lease_s`: from a task (as builtins) to the seconds that an episode of it may take, teardown and slack included.
        """
        state = ledger.state
        self._ledger = ledger
        self._plan = plan
        self._policy = policy
        self._comparison = comparison
        self._observer = observer = observer or Observer()
        self._bell = Bell()
        self._start_step, self._start_version = state.steps_done, state.served_version
        self._failure: Exception | None = None
        self._wind: Wind | None = None
        self._reason = ""
        self._trainer_told = False
        self._evaluating = False
        self._first_evaluation_due = plan.eval_tasks > 0 and state.steps_done == 0 and state.evaluated_step < 0
        self._work = WorkList(ledger, seed=plan.seed, retries=plan.retries, on_closed=self._closed, observer=observer)
        self._feed = Feed(ledger, policy, plan.schedule, comparison, observer=observer)
        self._admission = Admission(
            ledger,
            self._work,
            policy,
            self._progress,
            group_size=plan.group_size,
            page=plan.task_page,
            deadline_s=plan.task_deadline_s,
        )
        self._evaluator = Evaluator(
            ledger,
            self._work,
            tasks=plan.eval_tasks,
            samples=plan.eval_samples,
            page=plan.task_page,
            deadline_s=plan.task_deadline_s,
            observer=observer,
            bell=self._bell,
        )
        self._sealing = Sealing(ledger, self._work, sealer, on_settled=self._bell.ring, observer=observer)
        self._dispatcher = Dispatcher(
            ledger,
            self._work,
            self,
            plan.leases,
            lease_s=lease_s,
            on_done=self._sealing.take,
            on_lost=self._sealing.forget,
            observer=observer,
            bell=self._bell,
        )
        self._coordinator = UpdateCoordinator(
            engines,
            served_version=state.served_version,
            on_update=plan.on_update,
            on_served=self._served,
            rules=plan.updates,
            observer=observer,
        )

    async def run(self) -> str:
        """Train to the last step, or until stopped; the reason of the end. Every lease is terminal then. Raises what made the run fail."""
        recover(self._ledger, self._work, self._policy, self._plan.schedule, self._comparison)
        self._feed.close_all_ready()
        async with self._services():
            await self._train()
        return self._reason

    async def evaluate_only(self) -> EvaluationResult:
        """Run the held-out tasks once, without a trainer."""
        self._admission.open = False
        async with self._services():
            result = await self._evaluator.evaluate(self._ledger.state.steps_done)
            self._end("evaluated")
        return result

    async def _train(self) -> None:
        await self._unless_stopped(self._course)
        if self._wind is not None:
            await self._wind_down()
        self._end(self._reason)

    async def _course(self) -> None:
        """Evaluate; train, with evaluations beside it; evaluate."""
        if self._first_evaluation_due:
            await self._evaluate(0)
            self._first_evaluation_due = False
            self._bell.ring()
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._evaluate_every_so_often)
            await self._until(lambda: self._finished and not self._evaluating)
            beside.cancel_scope.cancel()
        self._reason = "finished"
        await self._last_words()
        if self._plan.eval_tasks:
            await self._evaluate(self._ledger.state.steps_done)

    async def _unless_stopped(self, course: Callable[[], Awaitable[None]]) -> None:
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await self._until(lambda: self._wind is not None)
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop)
            await course()
            tasks.cancel_scope.cancel()

    @property
    def _finished(self) -> bool:
        return self._ledger.state.steps_done >= self._plan.schedule.steps

    async def _evaluate_every_so_often(self) -> None:
        """One at a time; what came due meanwhile is one evaluation. The last step's is not made here."""
        every = self._plan.eval_every if self._plan.eval_tasks else 0
        state = self._ledger.state
        due = max(state.evaluated_step, self._start_step) // every + 1 if every else 0
        while every:
            await self._until_step(due * every)
            due = state.steps_done // every + 1
            await self._evaluate(state.steps_done)

    async def _until_step(self, step: int) -> None:
        await self._until(lambda: self._ledger.state.steps_done >= step and not self._finished)

    async def _evaluate(self, step: int) -> None:
        """Once the weights of that step are served."""
        self._evaluating = True
        try:
            await self._until(lambda: self._ledger.state.served_version >= self._version_of(step))
            await self._evaluator.evaluate(step)
        finally:
            self._evaluating = False
            self._bell.ring()

    async def _last_words(self) -> None:
        """The trainer is told to stop and writes its last checkpoint."""
        state = self._ledger.state

        def said() -> bool:
            saved = state.checkpoint is not None and state.checkpoint.step >= state.steps_done
            return self._trainer_told and (saved or state.steps_done == self._start_step)

        with anyio.move_on_after(self._plan.trainer_end_s):
            return await self._until(said)
        raise ProcessError(
            f"the trainer did not end within {self._plan.trainer_end_s:.0f} s of step {state.steps_done}; resume from its last checkpoint"
        )

    async def _wind_down(self) -> None:
        """Stop handing out work. A drain waits for the episodes that are out."""
        self._admission.open = False
        self._dispatcher.close()
        with anyio.move_on_after(self._plan.drain_s):
            await self._until(lambda: self._wind is Wind.NOW or not (self._dispatcher.held or self._sealing.pending))
        await self._last_words()

    def _end(self, reason: str) -> None:
        """Nothing is in flight after this; workers are sent home."""
        self._dispatcher.withdraw_all()
        self._work.interrupt_all()
        self._dispatcher.stop()
        self._ledger.record(Ended(reason))

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[None]:
        """What runs beside the main thread of events; a failure of any ends all, and is raised plainly."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sealing.run)
                tasks.start_soon(self._dispatcher.watch)
                tasks.start_soon(self._coordinator.run)
                tasks.start_soon(self._ledger.tend, self._plan.tend_s)
                tasks.start_soon(self._raise_failure)
                self._dispatcher.open()
                yield
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            cause = only(failures)
            raise cause from cause.__cause__

    async def _raise_failure(self) -> None:
        await self._until(lambda: self._failure is not None)
        assert self._failure is not None
        raise self._failure

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._bell.wait()

    def stop(self, wind: Wind, reason: str = "stopped") -> None:
        """End early. A second call may turn a drain into an end now."""
        self._wind, self._reason = wind, reason
        self._bell.ring()

    def fail(self, cause: Exception) -> None:
        """Make `run` raise `cause`."""
        self._failure = self._failure or cause
        self._bell.ring()

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """What the program cannot go on after ends the run, not only the message that met it."""
        try:
            yield
        except Exception as cause:
            self.fail(cause)
            raise

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        with self._fatal():
            return await self._dispatcher.lease(request)

    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        with self._fatal():
            return self._dispatcher.heartbeat(beat)

    def done(self, done: EpisodeDone) -> bool:
        """Whether the episode was still expected."""
        with self._fatal():
            return self._dispatcher.done(done)

    def tasks(self, page: TaskPage) -> bool:
        """Whether the page was still expected."""
        with self._fatal():
            expected = self._evaluator.accept(page) or self._admission.accept(page)
            self._bell.ring()
            return expected

    def worker_lost(self, worker: str, detail: str = "") -> None:
        """Supervision found the worker's process ended."""
        with self._fatal():
            self._dispatcher.worker_lost(worker, detail)

    async def next_batch(self, wait_s: float) -> Batch | Stop | None:
        """For the trainer; None: none within `wait_s`. Asking again before all steps are reported gives the rest of the same batch."""
        with self._fatal(), anyio.move_on_after(min(wait_s, LONGEST_POLL_S)):
            while True:
                answer = self._batch_or_stop()
                if answer is not None:
                    return answer
                await self._bell.wait()
        return None

    def _batch_or_stop(self) -> Batch | Stop | None:
        if self._finished or self._wind is not None:
            self._trainer_told = True
            self._bell.ring()
            return Stop(self._reason or "finished")
        if (unfinished := self._feed.unfinished()) is not None:
            return unfinished
        if self._first_evaluation_due or not self._feed.ready:
            return None
        batch = self._feed.make()
        self._bell.ring()
        return batch

    def step(self, report: StepReport) -> None:
        """A repeated report is ignored."""
        with self._fatal():
            if report.step <= self._ledger.state.steps_done:
                return
            self._ledger.record(Trained(report.step))
            self._observer.step(StepEvent(step=report.step, steps=self._plan.schedule.steps, metrics=report.metrics))
            self._bell.ring()

    def ready(self, update: WeightUpdate) -> None:
        """Weights are published; a repeated announcement is ignored."""
        with self._fatal():
            if update.version != self._ledger.state.highest_version:
                self._ledger.record(Published(update.version))
            self._coordinator.offer(update)
            self._bell.ring()

    def checkpoint(self, report: CheckpointReport) -> None:
        with self._fatal():
            entry = Checkpointed(report.step, report.path)
            if entry != self._ledger.state.checkpoint:
                self._ledger.record(entry)
            self._bell.ring()

    def supply(self, room: int) -> None:
        self._admission.supply(room)

    def request(self) -> TaskRequest | None:
        return self._evaluator.request() or self._admission.request()

    def status(self) -> Status:
        state = self._ledger.state
        return Status(
            steps_done=state.steps_done,
            steps=self._plan.schedule.steps,
            epoch=state.epoch,
            waiting=self._work.waiting,
            running=self._dispatcher.held,
            sealing=self._sealing.pending,
            open_groups=state.open_groups,
            ready_groups=len(state.ready),
            served_version=state.served_version,
            published_version=state.highest_version,
            evaluating=self._evaluating,
            tally=dict(state.tally),
        )

    def _progress(self) -> Progress:
        state = self._ledger.state
        return Progress(
            schedule=self._plan.schedule,
            unconsumed=state.unconsumed(),
            steps_made=state.steps_made,
            published_version=state.highest_version,
            served_version=state.served_version,
            start_step=self._start_step,
            start_version=self._start_version,
        )

    def _version_of(self, step: int) -> int:
        """What is published after that step, if nothing was skipped."""
        return self._start_version + self._plan.schedule.publications(after=self._start_step, through=step)

    def _closed(self, group: Group) -> None:
        if group.split == "eval":
            self._evaluator.closed(group)
        else:
            self._feed.close(group)
        self._bell.ring()

    def _served(self, version: int) -> None:
        self._ledger.record(Served(version))
        self._bell.ring()
