"""An engine whose samples are written in advance: everything above tokens can be run, timed and tested without a model.

It is a real engine, not a stand-in for calls: it queues for slots, takes time, pauses in the three modes, stages and loads versions,
reports spans, overflows, times out and can be cancelled or made to fail. What it says comes from a script; its logprobs are a fixed
function of position and token, so a test can state them.
"""

import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from agentrl.engine.base import Capabilities, Chunk, EngineStatus, PauseMode
from agentrl.episode import FinishReason, Sampling, Span
from agentrl.errors import ContextOverflow, EngineError, EngineQuarantined, WeightError
from agentrl.weights.update import WeightUpdate

Completion = Sequence[int] | str
"""Token ids, or text for the engine's codec. The end-of-turn token is added unless it is the last one already."""
Script = Callable[[list[int]], Completion] | Iterable[Completion]
"""From prompt ids to a completion; or completions in the order of the calls."""


class Codec(Protocol):
    """Text to token ids and back; the gateway's `Tokenizer` is one."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class ByteCodec:
    """UTF-8 bytes are tokens 0 … 255; each special token's text is one token above them."""

    def __init__(self, specials: Sequence[str] = ()) -> None:
        self._ids = {text: 256 + i for i, text in enumerate(specials)}
        self._texts = {i: text.encode() for text, i in self._ids.items()}

    @property
    def vocab_size(self) -> int:
        return 256 + len(self._ids)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(text):
            special = next((s for s in self._ids if text.startswith(s, at)), None)
            ids += text[at].encode() if special is None else [self._ids[special]]
            at += 1 if special is None else len(special)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._texts[i] if i in self._texts else bytes([i]) for i in ids).decode(errors="replace")


@dataclass(frozen=True)
class Latency:
    """Seconds of each part of a call. `spread` is the sigma of a log-normal factor drawn once a call; 0: none."""

    call_s: float = 0.0
    prompt_token_s: float = 0.0
    token_s: float = 0.0
    spread: float = 0.0


@dataclass(eq=False)
class _Call:
    """A completion on its way out."""

    prompt: list[int]
    script: list[int]
    """All that the script says from here on."""
    plan: list[int]
    """Of it, what the limits allow."""
    finish: FinishReason
    stop_match: str | None = None
    done: int = 0
    """Tokens of the plan that were sampled."""
    versions: list[int] = field(default_factory=list)
    """[done]"""
    aborted: bool = False
    nap: anyio.CancelScope | None = None
    """The wait that an abort cuts short."""


class ScriptedEngine:
    """Says what `script` says. See the module's docstring."""

    def __init__(
        self,
        script: Script,
        *,
        codec: Codec | None = None,
        eos_token_id: int | None = None,
        context_length: int = 4096,
        vocab_size: int = 1 << 17,
        slots: int = 1024,
        latency: Latency | None = None,
        policy_version: int = 0,
        seed: int = 0,
        model: str = "scripted",
    ) -> None:
        self._script: Callable[[list[int]], Completion] | Iterator[Completion] = script if callable(script) else iter(script)
        self._codec = codec
        self._eos = eos_token_id
        self._latency = latency or Latency()
        self._random = random.Random(seed)
        self._slots = anyio.Semaphore(slots, fast_acquire=True)
        self._capabilities = Capabilities(
            model=model,
            context_length=context_length,
            vocab_size=vocab_size,
            eos_token_ids=() if eos_token_id is None else (eos_token_id,),
            keep=True,
        )
        self._version = policy_version
        self._prepared: int | None = None
        self._quarantined = False
        self._gate: anyio.Event | None = None
        self._draining = False
        self._idle: anyio.Event | None = None
        self._keep_kv = True
        self._calls: set[_Call] = set()
        self._waiting = 0
        self._unfinished: dict[tuple[int, ...], list[int]] = {}
        self._kv: OrderedDict[str, list[int]] = OrderedDict()
        self._failures: list[int] = []
        self._failing_loads = 0
        self._busy_s = self._busy_since = 0.0
        self._sampled = self._prefilled = 0
        self.prompts: list[list[int]] = []
        """The last prompts seen, newest last: what tests compare with the gateway's books."""

    def fail(self, after_tokens: int) -> None:
        """The next call dies, as with a lost engine, once it has sampled that many tokens. Calls add up."""
        self._failures.append(after_tokens)

    def fail_load(self) -> None:
        """The next load fails and leaves the engine quarantined."""
        self._failing_loads += 1

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, session: str, deadline_s: float, stream: bool = True
    ) -> AsyncIterator[Chunk]:
        room = self._capabilities.context_length - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(f"a prompt of {len(prompt_ids)} tokens leaves no room in a context of {len(prompt_ids) + room}")
        deadline = anyio.current_time() + deadline_s
        async with self._slot(deadline):
            call = self._start(prompt_ids, sampling, min(sampling.max_tokens, room))
            with self._running(call):
                async for chunk in self._sample(call, session=session, deadline=deadline, stream=stream):
                    yield chunk

    @asynccontextmanager
    async def _slot(self, deadline: float) -> AsyncIterator[None]:
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            self._waiting += 1
            try:
                with _limit(deadline):
                    await self._slots.acquire()
            finally:
                self._waiting -= 1
        try:
            await self._open(deadline)
            yield
        finally:
            self._slots.release()

    def _start(self, prompt_ids: list[int], sampling: Sampling, most: int) -> _Call:
        self.prompts.append(prompt_ids)
        del self.prompts[:-64]
        rest = self._unfinished.pop(tuple(prompt_ids), None) if self._unfinished else None
        whole = self._scripted(prompt_ids) if rest is None else rest
        ends = {*self._capabilities.eos_token_ids, *sampling.stop_token_ids}
        stop = next((i + 1 for i, token in enumerate(whole) if token in ends), len(whole))
        match = self._stop_string(whole[:stop], sampling.stop)
        if match is not None:
            stop = match[1]
        plan = whole[: min(stop, most)]
        ended = len(plan) == stop
        return _Call(prompt_ids, whole, plan, "stop" if ended else "length", match[0] if ended and match is not None else None)

    def _stop_string(self, ids: list[int], stops: Sequence[str]) -> tuple[str, int] | None:
        """The stop string that is met first, and the number of tokens that it takes to meet it."""
        for count in range(1, len(ids) + 1 if self._codec is not None and stops else 1):
            text = self._codec.decode(ids[:count]) if self._codec is not None else ""
            found = next((stop for stop in stops if stop in text), None)
            if found is not None:
                return found, count
        return None

    def _scripted(self, prompt_ids: list[int]) -> list[int]:
        if callable(self._script):
            said = self._script(prompt_ids)
        else:
            try:
                said = next(self._script)
            except StopIteration:
                raise EngineError("the script has no more completions; give the scripted engine more of them, or a function") from None
        if isinstance(said, str):
            if self._codec is None:
                raise EngineError("the script speaks text; give the scripted engine a codec")
            said = self._codec.encode(said)
        ids = list(said)
        return ids if self._eos is None or ids[-1:] == [self._eos] else [*ids, self._eos]

    async def _sample(self, call: _Call, *, session: str, deadline: float, stream: bool) -> AsyncIterator[Chunk]:
        factor = self._random.lognormvariate(0.0, self._latency.spread) if self._latency.spread else 1.0
        cached = self._reuse(call.prompt, session)
        self._prefilled += len(call.prompt) - cached
        await self._spend(call, factor * (self._latency.call_s + self._latency.prompt_token_s * (len(call.prompt) - cached)), deadline)
        fails_at = self._failures.pop(0) if self._failures else None
        step = 1 if self._latency.token_s or fails_at is not None else len(call.plan)
        sent = 0
        while call.done < len(call.plan):
            await self._spend(call, factor * self._latency.token_s, deadline)
            await self._open(deadline, call)
            if call.aborted:
                break
            if fails_at is not None and call.done >= fails_at:
                self._interrupted(call)
                raise EngineError(f"the scripted engine was told to fail after {fails_at} tokens")
            self._advance(call, step)
            if stream and call.done < len(call.plan):
                yield self._chunk(call, sent)
                sent = call.done
        if call.aborted:
            self._interrupted(call)
        self._remember(session, call)
        yield self._chunk(call, sent, finish="abort" if call.aborted else call.finish, cached=cached)

    def _advance(self, call: _Call, step: int) -> None:
        count = min(step, len(call.plan) - call.done)
        call.done += count
        call.versions += [self._version] * count
        self._sampled += count

    def _interrupted(self, call: _Call) -> None:
        """What was not said yet is said to whoever comes back with the exact prefix."""
        self._unfinished[tuple(call.prompt + call.plan[: call.done])] = call.script[call.done :]

    def _chunk(self, call: _Call, start: int, *, finish: FinishReason | None = None, cached: int = 0) -> Chunk:
        ids = tuple(call.plan[start : call.done])
        return Chunk(
            token_ids=ids,
            logprobs=tuple(scripted_logprob(start + i, token) for i, token in enumerate(ids)),
            finish_reason=finish,
            stop_match=call.stop_match if finish == "stop" else None,
            spans=() if finish is None else tuple(_spans(call.versions)),
            kv_oldest_version=min(call.versions, default=self._version),
            cached_tokens=cached,
        )

    @contextmanager
    def _running(self, call: _Call) -> Iterator[None]:
        if not self._calls:
            self._busy_since = time.monotonic()
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._busy_s += time.monotonic() - self._busy_since
                if self._idle is not None:
                    self._idle.set()

    async def _open(self, deadline: float, call: _Call | None = None) -> None:
        """Wait while paused; a call that is aborted, or that a drain lets finish, does not."""
        while self._gate is not None and not (call is not None and (call.aborted or self._draining)):
            self._waiting += 1
            try:
                with _limit(deadline):
                    await self._gate.wait()
            finally:
                self._waiting -= 1
        if self._quarantined:
            raise EngineQuarantined("a load failed; the engine serves nothing until a full load succeeds")

    async def _spend(self, call: _Call, seconds: float, deadline: float) -> None:
        """Time passes, until an abort cuts it short."""
        if seconds <= 0 or call.aborted:
            return
        with anyio.CancelScope() as call.nap, _limit(deadline):
            await anyio.sleep(seconds)

    def _reuse(self, prompt: list[int], session: str) -> int:
        held = self._kv.get(session, [])
        return len(held) if len(held) < len(prompt) and prompt[: len(held)] == held else 0

    def _remember(self, session: str, call: _Call) -> None:
        self._kv[session] = call.prompt + call.plan[: call.done]
        self._kv.move_to_end(session)
        if len(self._kv) > 64:
            self._kv.popitem(last=False)

    async def pause(self, mode: PauseMode) -> None:
        gate, self._gate = self._gate, anyio.Event()
        self._keep_kv = mode == "keep"
        self._draining = mode == "drain"
        if mode == "abort":
            for call in self._calls:
                call.aborted = True
                if call.nap is not None:
                    call.nap.cancel()
        if gate is not None:
            gate.set()  # whoever waited looks again
        while self._draining and self._calls:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def prepare(self, update: WeightUpdate) -> None:
        if update.version <= self._version:
            raise WeightError(f"version {update.version} is not above {self._version}, which is served; versions are never reused")
        if update.base is not None and update.base != self._version:
            raise WeightError(f"version {update.version} is a delta on {update.base} and {self._version} is served; send a full payload")
        self._prepared = update.version

    async def load(self, update: WeightUpdate) -> None:
        if update.version == self._version:
            return
        if self._prepared != update.version:
            raise WeightError(f"version {update.version} was not prepared")
        self._prepared = None
        if self._failing_loads:
            self._failing_loads -= 1
            self._quarantined = True
            raise WeightError("the scripted engine was told to fail a load; it is quarantined until a full load")
        self._version = update.version
        self._quarantined = self._quarantined and update.base is not None
        if not self._keep_kv:
            self._kv.clear()

    async def resume(self) -> None:
        gate, self._gate = self._gate, None
        self._draining = False
        if gate is not None:
            gate.set()

    async def sleep(self) -> None:
        await self.pause("abort")

    async def wake(self) -> None:
        await self.resume()

    async def status(self) -> EngineStatus:
        return EngineStatus(
            policy_version=self._version,
            paused=self._gate is not None,
            prepared=self._prepared,
            quarantined=self._quarantined,
            running=len(self._calls),
            waiting=self._waiting,
            busy_s=self._busy_s + (time.monotonic() - self._busy_since if self._calls else 0.0),
            sampled_tokens=self._sampled,
            prefilled_tokens=self._prefilled,
        )

    def capabilities(self) -> Capabilities:
        return self._capabilities


@contextmanager
def _limit(deadline: float) -> Iterator[None]:
    with anyio.CancelScope(deadline=deadline) as scope:
        yield
    if scope.cancelled_caught:
        raise EngineError("the call's deadline passed")


def scripted_logprob(position: int, token: int) -> float:
    """nats; between -0.125 and -1, exact in float32. The logprob that the scripted engine reports for a token at a position of a stream."""
    return -(1 + (7 * position + 3 * token) % 8) / 8


def _spans(versions: list[int]) -> Iterator[Span]:
    start = 0
    for end in range(1, len(versions) + 1):
        if end == len(versions) or versions[end] != versions[start]:
            yield Span(versions[start], start, end)
            start = end
