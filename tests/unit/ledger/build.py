"""Short ways to write journal entries in tests."""

from agentrl.episode import EpisodeKey
from agentrl.ledger.entry import BatchMade, Done, Issued, Running, Scored, ScoredRun, Split
from agentrl.ledger.feed import Batch, FeedEpisode, FeedRun, Minibatch
from agentrl.ledger.ledger import Ledger


def name(task: str, member: int, attempt: int = 0) -> str:
    return f"{task}.{member}.{attempt}"


def issued(task: str, member: int, *, size: int, attempt: int = 0, epoch: int = 0, index: int = 0, split: Split = "train") -> Issued:
    return Issued(name(task, member, attempt), EpisodeKey(epoch, task, member, attempt), split, index, size)


def scored_run(episode: str, reward: float | None, *, tokens: int = 10, version: int = 0, agent: str = "main") -> ScoredRun:
    return ScoredRun(f"{episode}/{agent}", agent, reward=reward, sampled=tokens, versions={version: tokens} if tokens else {})


def score(ledger: Ledger, episode: str, *runs: ScoredRun) -> None:
    """From issued to scored."""
    ledger.record(Running(episode, "w0"))
    ledger.record(Done(episode, "finished"))
    ledger.record(Scored(episode, f"{episode}.blob", runs, runs[0].reward if runs else None))


def scored_group(ledger: Ledger, task: str, rewards: list[float | None], *, index: int = 0, version: int = 0) -> int:
    """A closed group; its number."""
    ledger.record(*(issued(task, member, size=len(rewards), index=index) for member in range(len(rewards))))
    number = ledger.state.group_of(name(task, 0)).number
    for member, reward in enumerate(rewards):
        score(ledger, name(task, member), scored_run(name(task, member), reward, version=version))
    return number


def batch(ledger: Ledger, minibatches: list[list[int]], *, dropped: tuple[int, ...] = ()) -> BatchMade:
    """Feed whole groups, each minibatch a list of group numbers."""
    state = ledger.state
    made = []
    for at, numbers in enumerate(minibatches):
        members = [member for number in numbers for member in state.groups[number].members.values() if member.status == "scored"]
        episodes = tuple(
            FeedEpisode(m.episode, m.handle, tuple(FeedRun(run.agent_run, run.group, run.policy, 1.0) for run in m.runs)) for m in members
        )
        made.append(Minibatch(state.steps_made + 1 + at, episodes, sum(sum(run.versions.values()) for m in members for run in m.runs)))
    return BatchMade(Batch(state.batches + 1, tuple(made), 0, 0, ledger.position), tuple(tuple(n) for n in minibatches), dropped)
