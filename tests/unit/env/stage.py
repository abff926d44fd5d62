"""A stage for one episode: an environment, a task and a model that says what it is told to."""

from agentrl.env import Env, OpenSession, Task, assistant
from agentrl.episode import ChatMessage, EpisodeKey, EpisodeRecord, ToolCall
from agentrl.rollout.run import run_episode
from agentrl.rollout.wire import Lease
from agentrl.testing.episode import Says

__all__ = ["Says", "calling", "lease", "play"]


def calling(name: str, arguments: str = "{}", *, id: str = "call-1") -> ChatMessage:
    return assistant(calls=[ToolCall(id, name, arguments)])


def lease(task: Task, *, deadline_s: float = 30, member: int = 0, id: str = "lease", split: str = "train") -> Lease:
    return Lease(
        id=id,
        episode=f"e-{id}",
        key=EpisodeKey(0, task.id, member),
        split=split,  # type: ignore[arg-type]
        task=task.to_builtins(),
        group_seed=7,
        seed=100 + member,
        deadline_s=deadline_s,
    )


async def play(env: Env, model: OpenSession, task: Task | None = None, **options: float) -> EpisodeRecord:
    return await run_episode(env, lease(task or Task("Say yes.", answer="yes"), **options), model)  # type: ignore[arg-type]
