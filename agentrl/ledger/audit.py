"""The audit: does the journal prove that every task was accounted for exactly once, and that what was trained is what was sampled?

It reads the entries alone and adds them up in its own way, not with the state that the run itself used: a fault in that would otherwise
vouch for itself. It works on a live run, a dead one and a copy.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from agentrl.episode import read_record, read_turns
from agentrl.errors import StoreError
from agentrl.ledger.books import Account, Books
from agentrl.ledger.entry import Scored
from agentrl.ledger.journal import read_journal
from agentrl.ledger.revert import Revert, resumes

JOURNAL = "ledger.sqlite"
"""The journal's name in a run folder."""


class Decile(msgspec.Struct, frozen=True, kw_only=True):
    """A tenth of the scored training episodes, by sampled tokens; equal lengths share one.

    Rates are shares of its episodes, or of its kept tokens.
    """

    longest: int
    """tokens"""
    episodes: int
    trained: float
    dropped: float
    """Rejected after scoring: equal rewards, too few survivors, no reward."""
    stale: float
    """Evicted: nothing trainable was left."""
    masked: float
    """Share of the trainable tokens of fed agent runs that were over the staleness bound."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal says. `problems` is empty if everything adds up."""

    problems: tuple[str, ...]
    problem_count: int
    ended: str | None
    """Why the run ended; None: it is alive, or was killed."""
    resumes: int
    steps: int
    batches: int
    versions: int
    checkpoints: int
    evaluations: int
    epochs: int
    tasks: int
    """Groups issued for training."""
    members: int
    """Of those groups: each is accounted for below exactly once."""
    attempts: int
    trained: int
    waiting: int
    """Scored, not trained yet."""
    in_flight: int
    interrupted: int
    """A resume issues them again."""
    rejected: dict[str, int]
    """Members that ended untrained, by reason."""
    lost_attempts: dict[str, int]
    """Attempts that another one replaced, by reason."""
    refused: dict[str, int]
    """Tasks streamed and not issued, by reason."""
    trained_tokens: int
    masked_tokens: int
    deciles: tuple[Decile, ...]
    unsealed_rejections: int
    """Rejected before their length was known: in no decile."""
    blobs_checked: int

    @property
    def clean(self) -> bool:
        return self.problem_count == 0

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return {"clean": self.clean, **plain}


def audit(run_folder: Path, *, open_blob: Callable[[str], BinaryIO] | None = None) -> AuditReport:
    """Audit a run. `open_blob` opens a handle of the run's episode store; with it, trained tokens are counted in the blobs too.

    Raises LedgerError if there is no journal, or if it cannot be read at all.
    """
    path = run_folder / JOURNAL
    taken_up = resumes(read_journal(path))
    books = Books(Revert(taken_up))
    for recorded in read_journal(path):
        books.enter(recorded)
    books.balance()
    checked = _check_blobs(books, open_blob) if open_blob is not None else 0
    return _report(books, resumes=len(taken_up), blobs_checked=checked)


def _report(books: Books, *, resumes: int, blobs_checked: int) -> AuditReport:
    last = [attempts[-1] for (split, _, _), m in books.by_member().items() if split == "train" for attempts in m.values()]
    train = [account for account in books.accounts.values() if account.issued.split == "train"]
    replaced = [account for account in train if account.status == "rejected" and not account.final]
    ended = [account for account in last if account.status == "rejected" and account.final]
    return AuditReport(
        problems=tuple(books.problems),
        problem_count=books.problem_count,
        ended=books.ended,
        resumes=resumes,
        steps=books.counts["steps"],
        batches=books.counts["batches"],
        versions=books.counts["versions"],
        checkpoints=books.counts["checkpoints"],
        evaluations=books.counts["evaluations"],
        epochs=len(books.epochs),
        tasks=sum(split == "train" for split, _, _ in books.tasks),
        members=len(last),
        attempts=len(train),
        trained=sum(account.status == "trained" for account in last),
        waiting=sum(account.status == "scored" for account in last),
        in_flight=sum(account.status in ("issued", "running", "done") for account in last),
        interrupted=sum(account.status == "rejected" and not account.final for account in last),
        rejected=dict(Counter(account.reason for account in ended)),
        lost_attempts=dict(Counter(account.reason for account in replaced)),
        refused=dict(Counter(entry.reason for entry in books.refused)),
        trained_tokens=books.counts["trained_tokens"],
        masked_tokens=sum(account.masked for account in train),
        deciles=_deciles([account for account in last if account.sealed is not None]),
        unsealed_rejections=sum(account.sealed is None for account in ended),
        blobs_checked=blobs_checked,
    )


def _deciles(scored: list[Account]) -> tuple[Decile, ...]:
    """Equal lengths share a tenth, so with few different lengths some tenths are empty and left out."""
    lengths = sorted(account.sampled for account in scored)
    parts: dict[int, list[Account]] = {}
    for account in scored:
        parts.setdefault(10 * bisect_left(lengths, account.sampled) // len(lengths), []).append(account)
    return tuple(_decile(part) for _, part in sorted(parts.items()))


def _decile(part: list[Account]) -> Decile:
    kept = sum(account.fed + account.masked for account in part)
    stale = sum(account.reason == "stale" for account in part)
    return Decile(
        longest=max(account.sampled for account in part),
        episodes=len(part),
        trained=sum(account.status == "trained" for account in part) / len(part),
        dropped=(sum(account.status == "rejected" for account in part) - stale) / len(part),
        stale=stale / len(part),
        masked=sum(account.masked for account in part) / kept if kept else 0.0,
    )


def _check_blobs(books: Books, open_blob: Callable[[str], BinaryIO]) -> int:
    """Count the trainable tokens of every fed episode in its blob, turn by turn."""
    checked = 0
    for account in books.accounts.values():
        if account.sealed is None or account.status not in ("trained", "scored"):
            continue
        checked += 1
        try:
            counted = _count(account.sealed, open_blob)
        except (StoreError, OSError) as cause:
            books.problem(f"episode {account.issued.episode}: its blob {account.sealed.handle} cannot be read: {cause}")
            continue
        for run in account.sealed.runs:
            if counted.get(run.agent_run, Counter()) != Counter(run.versions):
                books.problem(
                    f"agent run {run.agent_run}: the journal has trainable tokens {run.versions} by version, "
                    f"its blob has {dict(counted.get(run.agent_run, {}))}"
                )
    return checked


def _count(sealed: Scored, open_blob: Callable[[str], BinaryIO]) -> dict[str, Counter[int]]:
    """[agent run][version]: trainable tokens in the blob. A sampled token lies in exactly one turn, so none is counted twice."""
    found: dict[str, Counter[int]] = {}
    with open_blob(sealed.handle) as file:
        record = read_record(file)
        if record.id != sealed.episode:
            raise StoreError(f"it holds episode {record.id}")
        for turn in read_turns(file):
            found.setdefault(turn.agent_run, Counter()).update(turn.versions[turn.mask].tolist())
    return found
