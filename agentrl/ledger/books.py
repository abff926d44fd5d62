"""The audit's books: the journal's entries, added up apart from the state that the run itself used.

Every entry is checked against what came before it; what only the whole can show (members, attempts, skipped tasks) is checked by `balance`.
"""

from collections import Counter

import msgspec

from agentrl.episode import EpisodeKey
from agentrl.ledger.entry import (
    AnyEntry,
    BatchMade,
    Checkpointed,
    Done,
    Ended,
    EpochEnded,
    Evaluated,
    Issued,
    Published,
    Refused,
    Rejected,
    Resumed,
    Retired,
    Running,
    Scored,
    ScoredRun,
    Served,
    Trained,
)
from agentrl.ledger.feed import Minibatch
from agentrl.ledger.journal import Recorded
from agentrl.ledger.revert import Revert

SHOWN = 100
"""Problems listed; more are only counted."""


class Account(msgspec.Struct):
    """One attempt."""

    issued: Issued
    status: str = "issued"
    reason: str = ""
    final: bool = True
    sealed: Scored | None = None
    step: int | None = None
    fed: int = 0
    masked: int = 0

    @property
    def sampled(self) -> int:
        return 0 if self.sealed is None else sum(run.sampled for run in self.sealed.runs)


_FOLLOWS = {
    "running": ("issued",),
    "done": ("running",),
    "scored": ("done",),
    "rejected": ("issued", "running", "done", "scored"),
    "trained": ("scored",),
}


class Books:
    """Adds up the entries."""

    def __init__(self, revert: Revert) -> None:
        self._revert = revert
        self.accounts: dict[str, Account] = {}
        self._keys: dict[tuple[str, EpisodeKey], str] = {}
        self.refused: list[Refused] = []
        self.epochs: dict[int, int] = {}
        self._pending: dict[int, Minibatch] = {}
        self._fed_in: dict[str, int] = {}
        self._consumed: dict[int, str] = {}
        self.tasks: dict[tuple[str, int, str], None] = {}
        self.counts: Counter[str] = Counter()
        self.ended: str | None = None
        self._version = -1
        self.problems: list[str] = []
        self.problem_count = 0

    def problem(self, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < SHOWN:
            self.problems.append(text)

    def enter(self, recorded: Recorded) -> None:
        entry, standing = recorded.entry, self._revert.standing(recorded)
        at = f"entry {recorded.position}"
        self.ended = entry.reason if isinstance(entry, Ended) else None
        match entry:
            case Issued():
                self._issued(at, entry)
            case Running() | Done():
                self._move(at, entry.episode, type(entry).__name__.lower())
            case Scored():
                if (account := self._move(at, entry.episode, "scored")) is not None:
                    account.sealed = entry
                    self._check_versions(at, entry)
            case Rejected():
                self._rejected(at, entry)
            case Published():
                if entry.version <= self._version:
                    self.problem(f"{at}: version {entry.version} was published after version {self._version}")
                self._version = max(self._version, entry.version)
                self.counts["versions"] += 1
            case Refused():
                self.refused.append(entry)
            case EpochEnded():
                self.epochs[entry.epoch] = entry.tasks
            case Evaluated():
                self.counts["evaluations"] += 1
            case Retired():
                for number in entry.groups:
                    self._consume(at, number, "a resume")
            case BatchMade() | Trained() | Checkpointed() | Served() | Resumed() | Ended():
                self._standing(at, standing)

    def _standing(self, at: str, entry: AnyEntry | None) -> None:
        """Entries that a resume may have taken back."""
        match entry:
            case BatchMade():
                self._batch(at, entry)
            case Trained():
                self._trained(at, entry.step)
            case Checkpointed():
                self.counts["checkpoints"] += 1

    def _issued(self, at: str, entry: Issued) -> None:
        key = (entry.split, entry.key)
        if key in self._keys:
            self.problem(f"{at}: {entry.split} {entry.key} was issued twice, as {self._keys[key]} and {entry.episode}")
        if entry.episode in self.accounts:
            self.problem(f"{at}: episode {entry.episode} was issued twice")
        self._keys[key] = entry.episode
        self.accounts[entry.episode] = Account(entry)
        self.tasks[(entry.split, entry.key.epoch, entry.key.task_id)] = None

    def _move(self, at: str, episode: str, to: str) -> Account | None:
        account = self.accounts.get(episode)
        if account is None:
            self.problem(f"{at}: episode {episode} became {to} and was never issued")
            return None
        if account.status not in _FOLLOWS[to]:
            self.problem(f"{at}: episode {episode} went from {account.status} to {to}")
        account.status = to
        return account

    def _rejected(self, at: str, entry: Rejected) -> None:
        if not entry.reason:
            self.problem(f"{at}: episode {entry.episode} was rejected without a reason")
        account = self._move(at, entry.episode, "rejected")
        if account is not None:
            account.reason, account.final = entry.reason, entry.final

    def _check_versions(self, at: str, entry: Scored) -> None:
        for run in entry.runs:
            if run.versions and not 0 <= min(run.versions) <= max(run.versions) <= self._version:
                self.problem(
                    f"{at}: agent run {run.agent_run} has tokens of versions {sorted(run.versions)}; {self._version} is the newest"
                )
            if sum(run.versions.values()) > run.sampled:
                self.problem(f"{at}: agent run {run.agent_run} has more trainable tokens than it sampled")

    def _batch(self, at: str, entry: BatchMade) -> None:
        batch = entry.batch
        self.counts["batches"] += 1
        for number in (*entry.dropped, *(number for share in entry.groups for number in share)):
            self._consume(at, number, f"batch {batch.number}")
        for minibatch in batch.minibatches:
            if minibatch.step in self._pending:
                self.problem(f"{at}: step {minibatch.step} was fed twice")
            self._pending[minibatch.step] = minibatch
            tokens = sum(
                self._feed(at, fed.episode, {run.agent_run for run in fed.runs}, batch.oldest_version) for fed in minibatch.episodes
            )
            if tokens != minibatch.trained_tokens:
                self.problem(f"{at}: step {minibatch.step} has a denominator of {minibatch.trained_tokens} for {tokens} trained tokens")
            self.counts["trained_tokens"] += tokens

    def _consume(self, at: str, group: int, by: str) -> None:
        if group in self._consumed:
            self.problem(f"{at}: group {group} was consumed by {self._consumed[group]} and by {by}")
        self._consumed[group] = by

    def _feed(self, at: str, episode: str, runs: set[str], oldest: int) -> int:
        """The tokens that an episode gives."""
        account = self.accounts.get(episode)
        if account is None or account.sealed is None or account.status != "scored":
            self.problem(f"{at}: episode {episode} was fed and is {account.status if account else 'unknown'}")
            return 0
        if episode in self._fed_in:
            self.problem(f"{at}: episode {episode} was fed twice")
        self._fed_in[episode] = 1
        known: dict[str, ScoredRun] = {run.agent_run: run for run in account.sealed.runs if run.trained and run.reward is not None}
        if runs - known.keys():
            self.problem(f"{at}: episode {episode} was fed with agent runs {sorted(runs - known.keys())}, which have no reward to train on")
        for name in runs & known.keys():
            versions = known[name].versions
            account.fed += (fresh := sum(count for version, count in versions.items() if version >= oldest))
            account.masked += sum(versions.values()) - fresh
        return account.fed

    def _trained(self, at: str, step: int) -> None:
        if step != self.counts["steps"] + 1:
            self.problem(f"{at}: step {step} was trained after step {self.counts['steps']}")
        self.counts["steps"] = max(self.counts["steps"], step)
        minibatch = self._pending.get(step)
        if minibatch is None:
            self.problem(f"{at}: step {step} was trained and never fed")
            return
        for fed in minibatch.episodes:
            account = self._move(at, fed.episode, "trained")
            if account is not None:
                account.step = step

    def balance(self) -> None:
        """What can only be said at the end."""
        for (split, epoch, task), members in self.by_member().items():
            size = next(iter(members.values()))[0].issued.size
            if sorted(members) != list(range(size)):
                self.problem(f"{split} task {task} of epoch {epoch} has members {sorted(members)}; its group has {size}")
            for attempts in members.values():
                self._balance_member(attempts)
        self._balance_cursor()
        if self.ended is not None and (left := sum(account.status in ("issued", "running", "done") for account in self.accounts.values())):
            self.problem(f"the run ended with {left} episodes in flight")

    def by_member(self) -> dict[tuple[str, int, str], dict[int, list[Account]]]:
        found: dict[tuple[str, int, str], dict[int, list[Account]]] = {}
        for account in self.accounts.values():
            key = account.issued.key
            found.setdefault((account.issued.split, key.epoch, key.task_id), {}).setdefault(key.member, []).append(account)
        return found

    def _balance_member(self, attempts: list[Account]) -> None:
        numbers = [account.issued.key.attempt for account in attempts]
        if numbers != list(range(len(attempts))):
            self.problem(f"{attempts[0].issued.episode}: its attempts are {numbers}")
        for account in attempts[:-1]:
            if account.status != "rejected" or account.final:
                self.problem(f"{account.issued.episode} is {account.status} and was issued again")

    def _balance_cursor(self) -> None:
        rows: dict[int, set[int]] = {}
        for account in self.accounts.values():
            if account.issued.split == "train":
                rows.setdefault(account.issued.key.epoch, set()).add(account.issued.index)
        for refused in self.refused:
            rows.setdefault(refused.epoch, set()).add(refused.index)
        for epoch, indexes in rows.items():
            expected = self.epochs.get(epoch, max(indexes) + 1)
            if missing := sorted(set(range(expected)) - indexes):
                self.problem(f"epoch {epoch}: tasks {missing[:10]} were skipped ({len(missing)} in all)")
