"""From a placed request to a journalled turn: the room that is left, the sampling, the mask, the books."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import anyio.to_thread
import numpy as np
from numpy.typing import NDArray

from agentrl.engine.base import Engine
from agentrl.episode import ChatMessage, FinishReason, Sampling, Turn
from agentrl.errors import ContextOverflow, EngineError, StoreError
from agentrl.gateway.call import Call, Order, Outcome
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.counters import Counters
from agentrl.gateway.draw import Draw, VersionClock
from agentrl.gateway.journal import Journal
from agentrl.gateway.parse import Parser
from agentrl.gateway.placement import Placement, new_messages
from agentrl.gateway.refusal import Refusal, invalid, overflow
from agentrl.gateway.session import OpenSession
from agentrl.gateway.stops import first_stop
from agentrl.gateway.template import TemplateRefusal
from agentrl.gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Work:
    """One turn in the making."""

    session: OpenSession
    order: Order
    call: Call
    placed: Placement
    prompt_len: int
    sampling: Sampling


class TurnMaker:
    """Makes turns with one engine."""

    def __init__(
        self, engine: Engine, clock: VersionClock, tokenizer: Tokenizer, journal: Journal, config: GatewayConfig, counters: Counters
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._tokenizer = tokenizer
        self._journal = journal
        self._config = config
        self._counters = counters
        self._context = engine.capabilities().context_length
        self._ends = frozenset(engine.capabilities().eos_token_ids)

    async def make(self, session: OpenSession, order: Order, call: Call) -> None:
        """Bring the call to its end, well or not. Never raises but for bugs and cancellation from outside."""
        try:
            placed = await self._place(session, order)
            prompt = [*placed.prefix.tolist(), *placed.prompt_ids]
            work = _Work(session, order, call, placed, len(prompt), self._sampling(session, order, len(prompt)))
            await self._sample(work, prompt)
        except Refusal as refusal:
            call.end(refusal)
        except TemplateRefusal as refusal:
            call.end(invalid(str(refusal), param="messages"))
        except ContextOverflow as cause:
            call.end(overflow(str(cause)))
        except EngineError as cause:
            call.end(Refusal(500, "engine_failed", str(cause)))
        except StoreError as cause:
            call.end(Refusal(500, "journal_failed", str(cause)))

    async def _place(self, session: OpenSession, order: Order) -> Placement:
        if order.tools and session.renderer.tools_refusal is not None:
            raise invalid(session.renderer.tools_refusal, param="tools", code="unsupported_value")
        placer, echoes = session.placer, order.echoes
        async with session.placing:
            match = placer.match(echoes, order.tools_key)
            if sum(len(known.message.content) for known in echoes[match.reply_depth :]) <= self._config.loop_chars:
                return placer.place(match, echoes, order.tools, order.tools_key)
            return await anyio.to_thread.run_sync(placer.place, match, echoes, order.tools, order.tools_key)

    def _sampling(self, session: OpenSession, order: Order, prompt_len: int) -> Sampling:
        spec = session.spec
        room = self._context - prompt_len
        if room < 1:
            raise overflow(
                f"This model's maximum context length is {self._context} tokens. Your messages resulted in {prompt_len} tokens. "
                "Shorten the conversation, or raise engine.context_length."
            )
        left = session.tokens_left()
        if left is not None and left < 1:
            raise overflow(f"This session's maximum of {spec.tokens} sampled tokens is reached: no context is left for another turn.")
        limits = [limit for limit in (room, order.max_tokens, spec.tokens_per_turn, left) if limit is not None]
        return Sampling(
            max_tokens=max(min(limits), 1),
            temperature=spec.temperature,
            top_p=spec.top_p,
            top_k=spec.top_k,
            min_p=spec.min_p,
            seed=session.seed(),
            stop=order.stops,
            stop_token_ids=tuple(token for token in session.renderer.stop_token_ids if token not in self._ends),
        )

    async def _sample(self, work: _Work, prompt: list[int]) -> None:
        call, session, order = work.call, work.session, work.order
        parser = session.renderer.parser(turn=call.turn, tools=order.use_tools and bool(order.tools), stops=order.stops)
        draw = Draw(self._engine, self._clock, session=session.secret)
        stream = order.stream
        try:
            async with aclosing(draw.run(prompt, work.sampling, deadline_s=self._config.call_s, stream=stream)) as parts:
                async for ids in parts:
                    deltas = parser.feed(ids)
                    if stream:
                        call.say(deltas)
        except BaseException:
            self._keep_partial(work, draw)
            raise
        finish: FinishReason = "stop" if parser.stopped else draw.finish
        deltas = parser.finish(finish)
        reply = parser.reply()
        turn = self._turn(work, draw, finish, reply, parser)
        self._book(work, turn)
        if stream:
            call.say(deltas)
        call.end(
            Outcome(
                reply=reply,
                finish="tool_calls" if reply.tool_calls and finish == "stop" else finish,
                prompt_tokens=work.prompt_len,
                completion_tokens=len(turn.completion_ids),
                cached_tokens=draw.cached_tokens,
            )
        )

    def _keep_partial(self, work: _Work, draw: Draw) -> None:
        """A call that did not come to its end leaves its tokens as data that is never trained."""
        if not draw.ids:
            return
        try:
            self._book(work, self._turn(work, draw, "abort", None, None))
        except StoreError:
            self._counters.error("journal_failed")

    def _turn(self, work: _Work, draw: Draw, finish: FinishReason, reply: ChatMessage | None, parser: Parser | None) -> Turn:
        placed, spec = work.placed, work.session.spec
        if parser is not None and parser.malformed:
            self._counters.error("malformed_tool_call", parser.malformed)
        mask = self._mask(draw, work.order.stops if parser is not None and parser.stopped else ())
        if spec.temperature == 0 or finish == "abort" or not spec.trained:
            mask[:] = False
        return Turn(
            id=work.call.turn,
            agent_run=spec.agent_run,
            parent=placed.parent,
            prompt_ids=np.asarray(placed.prompt_ids, np.int32),
            completion_ids=np.asarray(draw.ids, np.int32),
            mask=mask,
            sampler_logprobs=np.asarray(draw.logprobs, np.float32),
            spans=tuple(draw.spans),
            kv_oldest_version=draw.kv_oldest_version,
            sampling=work.sampling,
            finish_reason=finish,
            policy=spec.policy,
            template=work.session.renderer.digest,
            placement=placed.label,
            messages=new_messages(work.order.echoes, placed),
            tools=work.order.tools if placed.parent is None else (),
            reply=reply,
            started_at=work.call.created,
            ended_at=time.time(),
        )

    def _mask(self, draw: Draw, stops: Sequence[str]) -> NDArray[np.bool_]:
        """[completion] False without a version or a logprob, and past a stop match."""
        mask = np.isfinite(draw.logprobs)
        known = np.zeros(len(mask), bool)
        for span in draw.spans:
            known[span.start : span.end] = True
        mask &= known
        if stops:
            mask[self._through_stop(draw.ids, stops) :] = False
        return mask

    def _through_stop(self, ids: list[int], stops: Sequence[str]) -> int:
        """Tokens up to the end of the first match of a stop string."""
        stop = first_stop(self._tokenizer.decode(ids), stops)
        if stop is None:
            return len(ids)
        return bisect_left(range(len(ids)), stop.end, key=lambda count: len(self._tokenizer.decode(ids[:count])))

    def _book(self, work: _Work, turn: Turn) -> None:
        """Journal first; only then is the turn part of anything."""
        session, placed = work.session, work.placed
        self._journal.append(session.spec.episode, turn)
        placer = session.placer
        placer.trie.add(turn)
        session.sampled += len(turn.completion_ids)
        self._counters.placement(turn.placement)
        placer.settle(placed, turn)
