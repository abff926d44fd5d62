"""Whatever legal things happen in whatever order, with resumes between them, a replay gives the live state and the audit is clean."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl.ledger import Ledger, judge
from agentrl.ledger.audit import audit
from agentrl.ledger.entry import Checkpointed, Done, EpochEnded, Published, Refused, Rejected, Retired, Running, Scored, Served, Trained
from agentrl.objective import advantage_of
from tests.unit.ledger.build import batch, issued, scored_run


class LedgerMachine(RuleBasedStateMachine):
    """Moves that a controller makes."""

    @initialize()
    def start(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.ledger = Ledger.open(self.folder / "ledger.sqlite")
        self.tasks = 0
        self.ledger.record(Published(0), Served(0))

    @rule(size=st.integers(1, 3))
    def issue(self, size: int) -> None:
        state, task = self.ledger.state, f"t{self.tasks}"
        self.tasks += 1
        self.ledger.record(*(issued(task, m, size=size, epoch=state.epoch, index=state.next_index) for m in range(size)))

    @rule()
    def refuse(self) -> None:
        self.ledger.record(Refused(self.ledger.state.epoch, self.ledger.state.next_index, "t0", "duplicate"))

    @rule()
    def end_epoch(self) -> None:
        self.ledger.record(EpochEnded(self.ledger.state.epoch, self.ledger.state.next_index))

    @rule()
    def publish(self) -> None:
        self.ledger.record(Published(self.ledger.state.next_version))
        self.ledger.record(Served(self.ledger.state.highest_version))

    @precondition(lambda self: self.ledger.state.in_flight)
    @rule(data=st.data(), reward=st.sampled_from([0.0, 1.0, None]))
    def advance(self, data: st.DataObject, reward: float | None) -> None:
        member = data.draw(st.sampled_from(sorted(self.ledger.state.in_flight.values(), key=lambda m: m.episode)))
        run = scored_run(member.episode, reward, version=self.ledger.state.served_version)
        entries = {
            "issued": Running(member.episode, "w"),
            "running": Done(member.episode, "finished"),
            "done": Scored(member.episode, "h", (run,), reward),
        }
        self.ledger.record(entries[member.status])

    @precondition(lambda self: self.ledger.state.in_flight)
    @rule(data=st.data(), again=st.booleans())
    def reject(self, data: st.DataObject, again: bool) -> None:
        state = self.ledger.state
        member = data.draw(st.sampled_from(sorted(state.in_flight.values(), key=lambda m: m.episode)))
        entries: list[object] = [Rejected(member.episode, "frozen", final=not again, fault=True)]
        group = state.groups[member.group]
        if again:
            key = member.key
            entries.append(issued(key.task_id, key.member, size=group.size, attempt=key.attempt + 1, epoch=key.epoch, index=group.index))
        self.ledger.record(*entries)

    @precondition(lambda self: self.ledger.state.ready and self.ledger.state.batch is None)
    @rule(cut=st.integers(0, 3))
    def feed(self, cut: int) -> None:
        ledger = self.ledger
        numbers = list(ledger.state.ready)
        kept = []
        for number in numbers:
            judgement = judge(ledger.state.groups[number], advantage_of("default"))
            for member in list(ledger.state.groups[number].members.values()):
                if member.status == "scored" and member.episode not in judgement.kept:
                    ledger.record(Rejected(member.episode, judgement.reason(member.episode)))
            if judgement.kept:
                kept.append(number)
        dropped = tuple(number for number in numbers if number not in kept)
        ledger.record(batch(ledger, [kept[:cut], kept[cut:]], dropped=dropped))

    @precondition(lambda self: self.ledger.state.ready)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """As a restart does with what is too old to train."""
        state = self.ledger.state
        group = data.draw(st.sampled_from(list(state.ready.values())))
        scored = [member for member in group.members.values() if member.status == "scored"]
        if not scored:
            self.ledger.record(Retired((group.number,)))
            return
        key = scored[0].key
        again = issued(key.task_id, key.member, size=group.size, attempt=key.attempt + 1, epoch=key.epoch, index=group.index)
        self.ledger.record(Rejected(scored[0].episode, "stale", final=False), again)

    @precondition(lambda self: self.ledger.state.batch is not None)
    @rule()
    def train(self) -> None:
        self.ledger.record(Trained(self.ledger.state.steps_done + 1))

    @rule()
    def checkpoint(self) -> None:
        self.ledger.record(Checkpointed(self.ledger.state.steps_done, "c"))

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.ledger.resume_from(data.draw(st.integers(0, self.ledger.state.steps_made)))

    @rule()
    def reopen(self) -> None:
        before = self.ledger.state
        self.ledger.close()
        self.ledger = Ledger.open(self.folder / "ledger.sqlite")
        assert self.ledger.state == before

    @invariant()
    def accounted(self) -> None:
        state = self.ledger.state
        for number, group in state.ready.items():
            assert group.closed, number
        assert set(state.in_flight) <= set(state.episodes)
        assert state.unconsumed() == sum(
            group.number in state.ready or not group.closed for group in state.groups.values() if group.split == "train"
        )

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            report = audit(self.folder)
            assert report.problems == ()
            assert report.members == report.trained + report.waiting + report.in_flight + report.interrupted + sum(report.rejected.values())
            assert report.trained == self.ledger.state.tally["trained"]
            self.ledger.close()
            self.temporary.cleanup()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
