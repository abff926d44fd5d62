"""The feed: closed groups become batches.

A batch consumes `groups_per_step` closed groups, dropped ones included, so that a step always stands for the same number of tasks;
only kept agent runs' tokens within the staleness bound count in its denominators. Groups stay whole, so that advantages are
never split from the members they were computed with, and are spread over the minibatches by tokens. A minibatch may stay empty: see
`Schedule`.
"""

from dataclasses import dataclass, field

from agentrl.ledger import Comparison, Group, Judgement, KeptRun, Ledger, judge
from agentrl.ledger.deciles import Deciles
from agentrl.ledger.entry import BatchMade, Rejected
from agentrl.ledger.feed import Batch, FeedEpisode, FeedRun, Minibatch
from agentrl.rollout.observer import BatchEvent, DropEvent, Observer
from agentrl.rollout.policy import Policy
from agentrl.rollout.schedule import Schedule


@dataclass(slots=True)
class _Portion:
    """What one group gives to a batch."""

    group: int
    episodes: list[FeedEpisode] = field(default_factory=list)
    tokens: int = 0
    masked: int = 0
    by_version: dict[int, int] = field(default_factory=dict)
    stale: list[tuple[str, KeptRun]] = field(default_factory=list)


class Feed:
    """Judges groups as they close, and makes batches when the trainer asks."""

    def __init__(self, ledger: Ledger, policy: Policy, schedule: Schedule, comparison: Comparison, *, observer: Observer) -> None:
        self._ledger = ledger
        self._policy = policy
        self._schedule = schedule
        self._comparison = comparison
        self._observer = observer
        self._judgements: dict[int, Judgement] = {}
        self._lengths = Deciles()

    def close(self, group: Group) -> None:
        """Judge a group all of whose members are terminal, and reject what is dropped. Repeatable, as after a restart."""
        judgement = judge(group, self._comparison)
        self._judgements[group.number] = judgement
        for member in group.members.values():
            for run in member.runs:
                self._lengths.add(run.sampled)
        rejected = [
            Rejected(member.episode, judgement.reason(member.episode))
            for member in group.members.values()
            if member.status == "scored" and member.episode not in judgement.kept
        ]
        if rejected:
            self._ledger.record(*rejected)
        for drop in judgement.dropped:
            self._tell(drop.episode, drop.run.agent_run, drop.reason, drop.run.reward, drop.run.sampled)

    def close_all_ready(self) -> None:
        """After a restart: judge what closed before."""
        for group in list(self._ledger.state.ready.values()):
            self.close(group)

    @property
    def ready(self) -> bool:
        """A batch can be made."""
        return len(self._ledger.state.ready) >= self._schedule.groups_per_step

    def unfinished(self) -> Batch | None:
        """The batch whose steps are not all done, without those that are: what a trainer gets that asks again."""
        made = self._ledger.state.batch
        if made is None:
            return None
        left = tuple(minibatch for minibatch in made.batch.minibatches if minibatch.step > self._ledger.state.steps_done)
        return Batch(made.batch.number, left, made.batch.policy_version, made.batch.oldest_version, made.batch.ledger_position)

    def make(self) -> Batch:
        """Consume the next groups. `ready` must hold."""
        state = self._ledger.state
        oldest = self._policy.oldest_version(state.served_version)
        groups = self._policy.select(state.ready.values(), self._schedule.groups_per_step)
        portions = [self._portion(group, oldest) for group in groups]
        steps = self._schedule.batch_steps(state.steps_made)
        shares = _spread([portion for portion in portions if portion.episodes], len(steps))
        batch = Batch(
            number=state.batches + 1,
            minibatches=tuple(
                Minibatch(
                    step,
                    tuple(episode for portion in share for episode in portion.episodes),
                    sum(portion.tokens for portion in share),
                )
                for step, share in zip(steps, shares, strict=True)
            ),
            policy_version=state.served_version,
            oldest_version=oldest,
            ledger_position=self._ledger.position,
        )
        dropped = tuple(portion.group for portion in portions if not portion.episodes)
        event = self._event(batch, groups, portions, dropped)
        fed = {episode.episode for portion in portions for episode in portion.episodes}
        stale = [Rejected(e, "stale") for e in dict.fromkeys(e for portion in portions for e, _ in portion.stale) if e not in fed]
        self._ledger.record(*stale, BatchMade(batch, tuple(tuple(portion.group for portion in share) for share in shares), dropped))
        for group in groups:
            del self._judgements[group.number]
        for episode, kept in (pair for portion in portions for pair in portion.stale):
            self._tell(episode, kept.run.agent_run, "stale", kept.run.reward, kept.run.sampled)
        self._observer.batch(event)
        return batch

    def _portion(self, group: Group, oldest: int) -> _Portion:
        portion = _Portion(group.number)
        for episode, kept in self._judgements[group.number].kept.items():
            member = group.members[self._ledger.state.episodes[episode].key.member]
            if member.status != "scored":
                continue
            runs = []
            for entry in kept:
                trained = sum(count for version, count in entry.run.versions.items() if version >= oldest)
                portion.masked += sum(entry.run.versions.values()) - trained
                if not trained:
                    portion.stale.append((episode, entry))
                    continue
                portion.tokens += trained
                for version, count in entry.run.versions.items():
                    if version >= oldest:
                        portion.by_version[version] = portion.by_version.get(version, 0) + count
                runs.append(FeedRun(entry.run.agent_run, entry.run.group, entry.run.policy, entry.advantage))
            if runs:
                portion.episodes.append(FeedEpisode(episode, member.handle, tuple(runs)))
        return portion

    def _event(self, batch: Batch, groups: list[Group], portions: list[_Portion], dropped: tuple[int, ...]) -> BatchEvent:
        rewards = [member.reward for group in groups for member in group.members.values() if member.reward is not None]
        by_version: dict[int, int] = {}
        for portion in portions:
            for version, count in portion.by_version.items():
                by_version[version] = by_version.get(version, 0) + count
        trained = sum(by_version.values())
        staleness = sum((batch.policy_version - version) * count for version, count in by_version.items())
        return BatchEvent(
            number=batch.number,
            first_step=batch.minibatches[0].step,
            last_step=batch.minibatches[-1].step,
            policy_version=batch.policy_version,
            groups=len(groups),
            dropped_groups=len(dropped),
            episodes=sum(len(portion.episodes) for portion in portions),
            reward=sum(rewards) / len(rewards) if rewards else None,
            trained_tokens=trained,
            masked_tokens=sum(portion.masked for portion in portions),
            staleness_max=max((batch.policy_version - version for version in by_version), default=0),
            staleness_mean=staleness / trained if trained else 0.0,
        )

    def _tell(self, episode: str, agent_run: str, reason: str, reward: float | None, sampled: int) -> None:
        self._observer.drop(
            DropEvent(
                episode=episode,
                agent_run=agent_run,
                reason=reason,
                reward=reward,
                sampled_tokens=sampled,
                length_decile=self._lengths.of(sampled),
            )
        )


def _spread(portions: list[_Portion], count: int) -> list[list[_Portion]]:
    """`count` shares of about equal tokens, portions kept whole: the largest first, each to the lightest share."""
    shares: list[list[_Portion]] = [[] for _ in range(count)]
    weights = [0] * count
    for portion in sorted(portions, key=lambda portion: portion.tokens, reverse=True):
        lightest = weights.index(min(weights))
        shares[lightest].append(portion)
        weights[lightest] += portion.tokens
    return shares
