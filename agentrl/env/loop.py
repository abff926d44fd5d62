"""The tool loop: what an agent does by default."""

from typing import TYPE_CHECKING

from agentrl.env.session import Reply, Session
from agentrl.env.tool import Toolbox
from agentrl.errors import LimitReached

if TYPE_CHECKING:
    from agentrl.env.episode import AgentRun


async def converse(run: "AgentRun", session: Session, tools: Toolbox) -> Reply:
    """Turns and tool calls until the model answers without a call, or a tool ends the run. Raises LimitReached.

    Calls are executed one after the other, in the order written: tools share the episode's state.
    """
    while True:
        reply = await take_turn(run, session, tools)
        for call in reply.message.tool_calls:
            run.doing(f"tool {call.name}")
            run.messages.append(await tools.answer(call, run, turn=reply.turn))
        if run.stopped or not reply.message.tool_calls:
            return reply


async def take_turn(run: "AgentRun", session: Session, tools: Toolbox) -> Reply:
    """One model call. A reply that was cut is kept, and its tool calls are not executed: they may be torn."""
    limit = run.bounds
    if run.turns >= limit.turns:
        raise LimitReached("turns", f"agent {run.agent} used all of its {limit.turns} turns")
    if limit.tokens is not None and run.tokens >= limit.tokens:
        raise LimitReached("tokens", f"agent {run.agent} used all of its {limit.tokens} tokens")
    run.doing(f"turn {run.turns + 1}")
    reply = await session.call(run.messages, tools.specs)
    run.turns += 1
    run.tokens += reply.completion_tokens
    run.messages.append(reply.message)
    if reply.finish == "length":
        spent = limit.tokens is not None and run.tokens >= limit.tokens
        raise LimitReached("tokens" if spent else "length", f"turn {run.turns} of agent {run.agent} was cut")
    return reply
