"""What became of every episode: an append-only journal, the state it adds up to, and the audit of it."""

from agentrl.ledger.group import Comparison, DroppedRun, DropReason, Judgement, KeptRun, judge
from agentrl.ledger.journal import Journal, Recorded, read_journal
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.lock import RunLock
from agentrl.ledger.state import Group, Member, State

__all__ = [
    "Comparison",
    "DropReason",
    "DroppedRun",
    "Group",
    "Journal",
    "Judgement",
    "KeptRun",
    "Ledger",
    "Member",
    "Recorded",
    "RunLock",
    "State",
    "judge",
    "read_journal",
]
