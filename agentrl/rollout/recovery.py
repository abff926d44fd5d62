"""What a new controller makes of what the last one left.

Episodes in flight are issued again. Closed groups that a resume gave back are fed again, in their order. By the time that a group's turn
comes its tokens may be over the bound (versions go on above the highest ever used): members without a token left to train are issued again,
so that no task is lost and no step goes without an update, and dropped groups, which were counted in their time, are retired.
"""

from agentrl.ledger import Comparison, Group, Ledger, Member, judge
from agentrl.ledger.entry import Rejected, Retired
from agentrl.rollout.policy import Policy
from agentrl.rollout.schedule import Schedule
from agentrl.rollout.work import WorkList


def recover(ledger: Ledger, work: WorkList, policy: Policy, schedule: Schedule, comparison: Comparison) -> None:
    """Call once, before anything is leased."""
    state = ledger.state
    before = 0
    for group in list(state.groups.values()):
        if group.split == "eval":
            _give_up(ledger, group)
            continue
        step = state.steps_made + before // schedule.groups_per_step * schedule.minibatches
        version = state.served_version + schedule.publications(after=state.steps_made, through=step)
        if _goes_on(ledger, work, group, comparison, policy.oldest_version(version)):
            before += 1


def _give_up(ledger: Ledger, group: Group) -> None:
    """An evaluation that was cut short is made anew, as another one."""
    for member in list(group.members.values()):
        if not member.terminal:
            ledger.record(Rejected(member.episode, "interrupted"))


def _goes_on(ledger: Ledger, work: WorkList, group: Group, comparison: Comparison, oldest: int) -> bool:
    """Issue again what must be; False if the group was retired."""
    members = list(group.members.values())
    wanted = [member for member in members if member.status == "scored"]
    if group.closed:
        kept = judge(group, comparison).kept
        if not kept and not any(_fresh(member, oldest) for member in members):
            ledger.record(*(Rejected(member.episode, "stale") for member in wanted), Retired((group.number,)))
            return False
        wanted = [member for member in wanted if member.episode in kept]
    for member in members:
        if not member.terminal:
            work.renew(member, "interrupted")
    for member in wanted:
        if not _fresh(member, oldest):
            work.renew(member, "stale")
    return True


def _fresh(member: Member, oldest: int) -> bool:
    """It has a token that can still be trained when its group's turn comes."""
    return any(version >= oldest for run in member.runs if run.trained for version in run.versions)
