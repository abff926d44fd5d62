"""One completion, drawn to its end whatever happens to the weights and the engine on the way.

A pause with "abort" ends the engine's part of a call; the gateway then comes back with the exact prefix, waits in the engine's queue until
it resumes, and goes on. Nothing that was sampled is sampled again. A lost engine is handled the same way, but its tokens come without
spans: they belong to the version served before and after if that is the same, else to none (then they are not trained).
"""

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import anyio
import msgspec

from agentrl.engine.base import Chunk, Engine
from agentrl.episode import FinishReason, Sampling, Span
from agentrl.errors import ContextOverflow, EngineError

_PATIENCE_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between tries; the last one repeats."""
LOST_S = 90.0
"""An engine that is lost for this long fails the call: time enough to be started anew and to load its weights."""


class VersionClock:
    """The newest policy_version seen in any reply of the engine: a lower bound of what is served now."""

    def __init__(self, version: int) -> None:
        self.version = version

    def saw(self, spans: tuple[Span, ...]) -> None:
        self.version = max(self.version, *(span.policy_version for span in spans)) if spans else self.version


class Draw:
    """A completion on its way. Read the fields after (or, for what there is so far, during) `run`."""

    def __init__(self, engine: Engine, clock: VersionClock, *, session: str) -> None:
        self._engine = engine
        self._clock = clock
        self._session = session
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[Span] = []
        self.finish: FinishReason = "abort"
        self.stop_match: str | None = None
        self.cached_tokens = 0
        self.interruptions = 0
        """Updates and lost engines met on the way."""
        self._kv_oldest: int | None = None

    @property
    def kv_oldest_version(self) -> int:
        return self._clock.version if self._kv_oldest is None else self._kv_oldest

    async def run(self, prompt: list[int], sampling: Sampling, *, deadline_s: float, stream: bool) -> AsyncGenerator[list[int], None]:
        """New ids as they come. Raises ContextOverflow, or EngineError when the deadline passes or the engine stays lost."""
        deadline = anyio.current_time() + deadline_s
        lost_since: float | None = None
        while True:
            start, version = len(self.ids), self._clock.version
            try:
                async with aclosing(self._part(prompt, sampling, deadline, stream=stream)) as part:
                    async for ids in part:
                        yield ids
            except ContextOverflow:
                raise
            except EngineError as cause:
                now = anyio.current_time()
                lost_since = now if lost_since is None or len(self.ids) > start else lost_since
                if now >= min(deadline, lost_since + LOST_S):
                    raise EngineError(f"no engine could finish the call: {cause}") from cause
                await self._recover(start, version, min(deadline, lost_since + LOST_S))
            else:
                if self.finish != "abort":
                    return
                if len(self.ids) == start:
                    await anyio.sleep(_PATIENCE_S[0])
            self.interruptions += 1
            if len(self.ids) >= sampling.max_tokens:
                self.finish = "length"
                return

    async def _part(self, prompt: list[int], sampling: Sampling, deadline: float, *, stream: bool) -> AsyncGenerator[list[int], None]:
        """One stay with the engine."""
        start = len(self.ids)
        chunks = self._engine.generate(
            prompt + self.ids if start else prompt,
            self._rest_of(sampling),
            session=self._session,
            deadline_s=max(deadline - anyio.current_time(), 0.001),
            stream=stream,
        )
        async with aclosing(cast(AsyncGenerator[Chunk, None], chunks)) as stay:
            async for chunk in stay:
                self._take(chunk, start)
                if chunk.token_ids:
                    yield list(chunk.token_ids)
                if chunk.finish_reason is not None:
                    return
        raise EngineError("the engine's stream ended without a finish reason")

    def _rest_of(self, sampling: Sampling) -> Sampling:
        if not self.interruptions:
            return sampling
        seed = None if sampling.seed is None else sampling.seed + 0x9E3779B9 * self.interruptions & 0x7FFFFFFF
        return msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - len(self.ids), seed=seed)

    def _take(self, chunk: Chunk, start: int) -> None:
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        if chunk.finish_reason is None:
            return
        self.finish, self.stop_match = chunk.finish_reason, chunk.stop_match
        self.spans += [Span(span.policy_version, span.start + start, span.end + start) for span in chunk.spans]
        self.cached_tokens = self.cached_tokens or chunk.cached_tokens
        self._saw_kv(chunk.kv_oldest_version)
        self._clock.saw(chunk.spans)

    def _saw_kv(self, version: int) -> None:
        self._kv_oldest = version if self._kv_oldest is None else min(self._kv_oldest, version)

    async def _recover(self, start: int, version: int, give_up: float) -> None:
        """After a lost engine: wait for it, and see what the tokens of the dead stream can be trusted with."""
        for wait in itertools.chain(_PATIENCE_S, itertools.repeat(_PATIENCE_S[-1])):
            await anyio.sleep(wait)
            try:
                served = (await self._engine.status()).policy_version
                break
            except EngineError as cause:
                if anyio.current_time() >= give_up:
                    raise EngineError(f"the engine is lost: {cause}") from cause
        if served == version and len(self.ids) > start:
            self.spans.append(Span(version, start, len(self.ids)))
            self._saw_kv(version)
