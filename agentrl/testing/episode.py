"""One episode in process: the real environment, and a model that says what it is told to.

No weights, no sockets, no run folder, so an environment's own tests take milliseconds:

    record = await play(MyEnv(), task, Says("42"))
    assert record.reward == 1.0
"""

from collections.abc import Mapping, Sequence

from agentrl.env import Env, OpenSession, Script, Session, SessionRequest, Split, Task, assistant
from agentrl.env.seed import derive
from agentrl.episode import ChatMessage, EpisodeKey, EpisodeRecord
from agentrl.rollout.run import run_episode
from agentrl.rollout.wire import Lease

Words = Sequence[str | ChatMessage]


class Says:
    """A model that says these words, a turn each, and then nothing. `by_agent` gives an agent words of its own."""

    def __init__(self, *words: str | ChatMessage, by_agent: Mapping[str, Words] | None = None) -> None:
        self._words = words
        self._by_agent = by_agent or {}
        self.requests: list[SessionRequest] = []
        """One for each agent run so far."""

    async def __call__(self, request: SessionRequest) -> Session:
        self.requests.append(request)
        words = self._by_agent.get(request.agent, self._words)
        return Script(request.agent_run, [assistant(word) if isinstance(word, str) else word for word in words])


async def play(
    env: Env, task: Task, model: OpenSession, *, split: Split = "train", member: int = 0, deadline_s: float = 60.0
) -> EpisodeRecord:
    """The record of one episode, as a worker would post it. `member`: of the task's group."""
    lease = Lease(
        id="lease",
        episode=f"episode-{member}",
        key=EpisodeKey(epoch=0, task_id=task.id, member=member),
        split=split,
        task=task.to_builtins(),
        group_seed=derive(task.id),
        seed=derive(task.id, member),
        deadline_s=deadline_s,
    )
    return await run_episode(env, lease, model)
