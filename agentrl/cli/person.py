"""A person at the keyboard as the model: reads the conversation, types the answer, or `/tool {"json": "arguments"}` to call a tool."""

from collections.abc import Sequence

import anyio
import msgspec
from rich.console import Console

from agentrl.env import Reply, Session, SessionRequest, assistant
from agentrl.episode import ChatMessage, ToolCall, ToolSpec
from agentrl.errors import GatewayError


class Keyboard:
    """Opens sessions that a person answers."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def __call__(self, request: SessionRequest) -> Session:
        return _Seat(self._console, request.agent_run)


class _Seat:
    base_url = ""
    secret = ""

    def __init__(self, console: Console, agent_run: str) -> None:
        self._console = console
        self._agent_run = agent_run
        self._shown = 0
        self._turns = 0

    async def call(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Reply:
        for message in messages[self._shown :]:
            self._console.print(f"{message.role}: {message.content}", markup=False, highlight=False)
        if self._turns == 0:
            for tool in tools:
                schema = msgspec.json.encode(tool.parameters).decode()
                told = f"tool /{tool.name}: {tool.description} {schema}"
                self._console.print(told, markup=False, highlight=False, style="dim", soft_wrap=True)
            self._console.print('type an answer, or a tool call such as /name {"argument": "value"}', markup=False, style="dim")
        self._shown = len(messages) + 1
        self._turns += 1
        try:
            line = await anyio.to_thread.run_sync(self._console.input, "you> ", abandon_on_cancel=True)
        except EOFError:
            raise GatewayError("the input ended before the episode did") from None
        return Reply(turn=f"{self._agent_run}.t{self._turns}", message=self._said(line))

    def _said(self, line: str) -> ChatMessage:
        if not line.startswith("/"):
            return assistant(line)
        name, _, arguments = line[1:].partition(" ")
        call = ToolCall(id=f"call_{self._turns}", name=name, arguments=arguments.strip() or "{}")
        return ChatMessage(role="assistant", tool_calls=(call,))

    async def close(self) -> None:
        pass
