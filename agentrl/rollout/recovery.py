"""What a new controller makes of what the last one left.

Episodes in flight are issued again. Closed groups that a resume gave back are fed again while they can be trained. Those that cannot,
since their tokens are over the bound now (versions go on above the highest ever used), would make steps without an update: their members
are issued again instead, and dropped ones, which were counted in their time, are retired.
"""

from agentrl.ledger import Comparison, Group, Ledger, Member, judge
from agentrl.ledger.entry import Rejected, Retired
from agentrl.rollout.policy import Policy
from agentrl.rollout.work import WorkList


def recover(ledger: Ledger, work: WorkList, policy: Policy, comparison: Comparison) -> None:
    """Call once, before anything is leased."""
    oldest = policy.oldest_version(ledger.state.served_version)
    for group in list(ledger.state.groups.values()):
        if group.split == "eval":
            _give_up(ledger, group)
        elif group.number in ledger.state.ready:
            _look_over(ledger, work, group, comparison, oldest)
        else:
            for member in list(group.members.values()):
                if not member.terminal:
                    work.renew(member, "interrupted")
                elif member.status == "scored" and not _fresh(member, oldest):
                    work.renew(member, "stale")


def _give_up(ledger: Ledger, group: Group) -> None:
    """An evaluation that was cut short is made anew, as another one."""
    for member in list(group.members.values()):
        if not member.terminal:
            ledger.record(Rejected(member.episode, "interrupted"))


def _look_over(ledger: Ledger, work: WorkList, group: Group, comparison: Comparison, oldest: int) -> None:
    """A closed group."""
    if any(_fresh(member, oldest) for member in group.members.values()):
        return
    kept = judge(group, comparison).kept
    if not kept:
        dropped = [Rejected(member.episode, "stale") for member in group.members.values() if member.status == "scored"]
        ledger.record(*dropped, Retired((group.number,)))
        return
    for member in [member for member in group.members.values() if member.episode in kept]:
        work.renew(member, "stale")


def _fresh(member: Member, oldest: int) -> bool:
    """It has a token that could still be trained."""
    return any(version >= oldest for run in member.runs if run.trained for version in run.versions)
