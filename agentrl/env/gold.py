"""The gold script as a model: it says what the environment's author wrote, and the real tools answer.

So a contract test proves the whole chain, from task over tools to reward, without a model.
"""

from collections.abc import Sequence
from random import Random

from agentrl.env.env import Env
from agentrl.env.messages import assistant
from agentrl.env.session import Reply, Session, SessionRequest
from agentrl.episode import ChatMessage, ToolSpec
from agentrl.errors import EnvError


class Script:
    """A session that says the given messages one after the other, then nothing."""

    base_url = ""
    secret = ""

    def __init__(self, agent_run: str, words: Sequence[ChatMessage]) -> None:
        self._agent_run = agent_run
        self._words = list(words)
        self._said = 0

    async def call(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Reply:
        message = self._words[self._said] if self._said < len(self._words) else assistant()
        self._said += 1
        return Reply(turn=f"{self._agent_run}.t{self._said}", message=message)

    async def close(self) -> None:
        pass


class Gold:
    """Opens sessions that play `env.gold`."""

    def __init__(self, env: Env) -> None:
        self._env = env

    async def __call__(self, request: SessionRequest) -> Session:
        gold = self._env.gold(request.task, Random(0))
        if gold is None:
            raise EnvError(f"{self._env.name} has no gold answer for task {request.task.id}: define gold() or demonstrations()")
        if isinstance(gold, str):
            return Script(request.agent_run, [assistant(gold)])
        return Script(request.agent_run, [message for message in gold if message.role == "assistant"])


class Silent:
    """Opens sessions of a model that answers nothing; an environment must give that no reward."""

    async def __call__(self, request: SessionRequest) -> Session:
        return Script(request.agent_run, [])
