"""`agentrl audit RUN`: does the journal prove that nothing was lost, doubled or trained twice? Exit status 1 if not."""

import sys
from collections.abc import Sequence

import msgspec

from agentrl.cli.options import Options
from agentrl.gateway.store import EpisodeStore
from agentrl.ledger.audit import AuditReport, Decile, audit
from agentrl.runtime.folder import RunFolder


def run(words: Sequence[str]) -> int:
    options = Options("agentrl audit", "prove that a run lost and doubled nothing")
    options.add_argument("run")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args(list(words))
    folder = RunFolder.open(asked.run)
    report = audit(folder.root, open_blob=EpisodeStore(str(folder.root.absolute())).open)
    if asked.json:
        sys.stdout.buffer.write(msgspec.json.encode(report.to_dict()) + b"\n")
    else:
        print("\n".join(lines(report)))
    return 0 if report.clean else 1


def verdict(report: AuditReport) -> str:
    """In one line: what became of every member of every group."""
    told = report.trained + report.waiting + report.in_flight + report.interrupted + sum(report.rejected.values())
    state = "clean" if report.clean else f"{report.problem_count} PROBLEMS"
    return f"{state}: {report.members} episodes issued for training, {report.trained} trained, {report.members - told} lost"


def lines(report: AuditReport) -> list[str]:
    """The report for the eye."""
    return [
        verdict(report),
        f"ended: {report.ended or 'no (alive, or killed)'}  resumes {report.resumes}",
        f"steps {report.steps}  batches {report.batches}  versions {report.versions}  evaluations {report.evaluations}",
        f"waiting {report.waiting}  in flight {report.in_flight}  interrupted {report.interrupted}  blobs checked {report.blobs_checked}",
        *(f"{count:>6} rejected: {reason}" for reason, count in sorted(report.rejected.items())),
        *(f"{count:>6} attempts replaced: {reason}" for reason, count in sorted(report.lost_attempts.items())),
        *(f"{count:>6} tasks refused: {reason}" for reason, count in sorted(report.refused.items())),
        "by length: longest  episodes  trained  dropped   stale  masked",
        *map(_line, report.deciles),
        *(f"PROBLEM: {problem}" for problem in report.problems),
    ]


def _line(decile: Decile) -> str:
    shares = f"{decile.trained:>7.1%}  {decile.dropped:>7.1%}  {decile.stale:>6.1%}  {decile.masked:>6.1%}"
    return f"{decile.longest:>18}  {decile.episodes:>8}  {shares}"
