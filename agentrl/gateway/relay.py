"""Agents whose model is not ours: their calls go to an outside OpenAI-compatible endpoint, and come back as turns without tokens.

Such turns keep the conversation for the record and are never trained, so nothing of the token books applies to them.
"""

import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import numpy as np

from agentrl.episode import ChatMessage, Parent, Sampling, ToolCall, ToolSpec, Turn
from agentrl.errors import GatewayError, StoreError
from agentrl.gateway.call import Call, Order, Outcome
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.counters import Counters
from agentrl.gateway.journal import Journal
from agentrl.gateway.parse import Delta, Parser
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.render import Sampled
from agentrl.gateway.session import OpenSession

_NO_TOKENS = "an outside model plays the policy: it is called by messages, and this gateway has no tokens for any other"


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = "stop"


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class Relay:
    """Calls to the endpoint that `gateway.outside_url` names."""

    def __init__(self, config: GatewayConfig, journal: Journal, counters: Counters) -> None:
        self._config = config
        self._journal = journal
        self._counters = counters

    async def make(self, session: OpenSession, order: Order, call: Call) -> None:
        """Bring the call to its end, well or not."""
        try:
            answer = await self._ask(_body(session, order))
            choice = answer.choices[0]
            reply = _reply(choice.message)
            self._book(session, order, call, reply, choice.finish_reason)
        except Refusal as refusal:
            call.end(refusal)
            return
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError, IndexError) as cause:
            call.end(
                Refusal(502, "outside_failed", f"the outside model at {self._config.outside_url} failed: {cause or type(cause).__name__}")
            )
            return
        except StoreError as cause:
            call.end(Refusal(500, "journal_failed", str(cause)))
            return
        if order.stream:
            call.say(_deltas(reply))
        usage = answer.usage or _Usage()
        call.end(Outcome(reply, choice.finish_reason or "stop", usage.prompt_tokens, usage.completion_tokens))

    async def _ask(self, body: dict[str, Any]) -> _Completion:
        timeout = aiohttp.ClientTimeout(total=self._config.call_s)
        headers = {"Authorization": f"Bearer {self._config.outside_key}"} if self._config.outside_key else {}
        # A connection of its own for every call: a stale pooled socket after an idle spell would fail it.
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as client:
            url = f"{(self._config.outside_url or '').rstrip('/')}/chat/completions"
            async with client.post(url, json=body, headers=headers) as response:
                data = await response.read()
                if response.status != 200:
                    said = data[:500].decode(errors="replace")
                    raise Refusal(response.status, "outside_refused", f"the outside model answered {response.status}: {said}")
                return msgspec.json.decode(data, type=_Completion)

    def _book(self, session: OpenSession, order: Order, call: Call, reply: ChatMessage, finish: str | None) -> None:
        placer, echoes = session.placer, order.echoes
        match = placer.match(echoes, order.tools_key)
        via = match.path[match.reply_depth].turn
        turn = Turn(
            id=call.turn,
            agent_run=session.spec.agent_run,
            parent=None if via is None else Parent(via, 0),
            prompt_ids=np.empty(0, np.int32),
            completion_ids=np.empty(0, np.int32),
            mask=np.empty(0, bool),
            sampler_logprobs=np.empty(0, np.float32),
            spans=(),
            kv_oldest_version=0,
            sampling=Sampling(max_tokens=order.max_tokens or 0, temperature=session.spec.temperature, stop=order.stops),
            finish_reason="length" if finish == "length" else "stop",
            policy=session.spec.policy,
            placement="exact" if via is not None else "root",
            messages=tuple(known.message for known in echoes[match.reply_depth :]),
            tools=order.tools if via is None else (),
            reply=reply,
            started_at=call.created,
            ended_at=time.time(),
        )
        self._journal.append(session.spec.episode, turn)
        placer.trie.add(turn)
        self._counters.placement(turn.placement)
        placer.history.add_reply(placer.history.grow(match.path[-1], echoes[match.depth :]), reply, turn.id)


class Unrendered:
    """The renderer of a gateway without a model: what goes to an outside one stays messages."""

    digest = ""
    stop_token_ids: tuple[int, ...] = ()
    tools_refusal: str | None = None
    needs_prefix = False

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int]:
        raise GatewayError(_NO_TOKENS)

    def extend(self, after: Sampled, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int] | None:
        raise GatewayError(_NO_TOKENS)

    def parser(self, *, turn: str, tools: bool, stops: Sequence[str]) -> Parser:
        raise GatewayError(_NO_TOKENS)


def _body(session: OpenSession, order: Order) -> dict[str, Any]:
    spec = session.spec
    body: dict[str, Any] = {
        "model": session.outside,
        "messages": [_wire(known.message) for known in order.echoes],
        "temperature": spec.temperature,
        "top_p": spec.top_p,
    }
    limits = [limit for limit in (order.max_tokens, spec.tokens_per_turn) if limit is not None]
    if limits:
        body["max_tokens"] = min(limits)
    if order.stops:
        body["stop"] = list(order.stops)
    if order.tools:
        body["tools"] = [
            {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}
            for tool in order.tools
        ]
        if not order.use_tools:
            body["tool_choice"] = "none"
    return body


def _wire(message: ChatMessage) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _reply(message: _Message) -> ChatMessage:
    return ChatMessage(
        role="assistant",
        content=message.content or "",
        reasoning=message.reasoning_content,
        tool_calls=tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()),
    )


def _deltas(reply: ChatMessage) -> list[Delta]:
    deltas = [Delta(reasoning=reply.reasoning)] if reply.reasoning else []
    if reply.content:
        deltas.append(Delta(content=reply.content))
    return deltas + [Delta(call=call) for call in reply.tool_calls]
