"""Which calls run, and what each forward computes: the engine without its thread.

Every step is one packed forward over all seated calls: a token for each, and as much of the waiting prompts as the chunk allows. A call
whose prompt is being computed by another one waits for it and copies, so a group's prompt is computed once. Whatever a call has computed
when it ends is retained for the next turn.
"""

import random
import time
from collections.abc import Callable

import numpy as np
import torch

from agentrl.engine.base import PauseMode
from agentrl.engine.torch.attention import Plan
from agentrl.engine.torch.call import Call
from agentrl.engine.torch.model import SlotModel
from agentrl.engine.torch.prefix import PrefixTree, Tokens
from agentrl.engine.torch.retained import Retained, RetainedKV
from agentrl.engine.torch.sampler import draw
from agentrl.episode import FinishReason
from agentrl.errors import EngineError

_PREFILL_TOKENS = 512
"""Prompt tokens of one step beyond one per call; more would make the calls that decode wait longer."""
_WORTH_SHARING = 8
"""Shared tokens that are worth a copy or a wait (or half of a shorter prompt): fewer are computed faster than found."""


class Scheduler:
    """Owns the calls, their KV and the counters. Used by one thread at a time."""

    def __init__(self, model: SlotModel, *, slots: int, retained_bytes: int, policy_version: int, seed: int | None = None) -> None:
        self.model = model
        self.policy_version = policy_version
        self.paused: PauseMode | None = None
        self._busy: tuple[float, float | None] = (0.0, None)
        """Seconds of the steps that ended, and since when one is going on; one value, since another thread reads it."""
        self.sampled_tokens = 0
        self.prefilled_tokens = 0
        self._uniform: Callable[[], float] = random.Random(seed).random
        self._limit = slots
        self._slots = model.slots()
        self._retained = RetainedKV(retained_bytes)
        self._prompts: PrefixTree[Call] = PrefixTree()
        """Prompts of seated calls."""
        self._waiting: dict[Call, None] = {}
        """In order of arrival."""

    @property
    def busy_s(self) -> float:
        """Seconds spent in steps, the one that is going on included. May be read from any thread."""
        busy_s, since = self._busy
        return busy_s if since is None else busy_s + time.perf_counter() - since

    @property
    def running(self) -> int:
        return len(self._slots)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """A step would compute something."""
        return (self.running > 0 and self.paused in (None, "drain")) or (self.waiting > 0 and self.paused is None)

    def uniform_for(self, seed: int | None) -> Callable[[], float]:
        """Draws for one call: its own generator if it has a seed, so that other calls do not disturb it."""
        return self._uniform if seed is None else random.Random(seed).random

    def submit(self, call: Call) -> None:
        self._waiting[call] = None

    def cancel(self, call: Call) -> None:
        """End a call that nobody listens to any more; harmless if it has ended."""
        self._waiting.pop(call, None)
        if call.row >= 0:
            self._unseat(call)

    def pause(self, mode: PauseMode) -> None:
        """Under "drain", the pause is complete when nothing runs."""
        self.paused = mode
        if mode == "abort":
            for call in self._slots.calls():
                self._finish(call, "abort")

    def resume(self) -> None:
        self.paused = None

    def updated(self, version: int) -> None:
        """The model has new weights. Unless the pause kept KV, none of it is reused under them."""
        self.policy_version = version
        if self.paused in ("abort", "drain"):
            self._retained.clear()

    def fail(self, error: Exception) -> None:
        """End every call with an error, and trust none of the KV."""
        for call in [*self._waiting, *self._slots.calls()]:
            self.cancel(call)
            call.post(error)
        self._retained.clear()

    def release(self) -> None:
        """Give all KV memory back; calls that run are aborted."""
        for call in self._slots.calls():
            self._finish(call, "abort")
        self._retained.clear()
        self._slots.release()

    def step(self) -> None:
        """Seat waiting calls, run one forward, draw, deliver."""
        busy_s, started = self._busy[0], time.perf_counter()
        self._busy = (busy_s, started)
        try:
            if self.paused is None and self._waiting:
                self._seat_waiting()
            plan = self.model.planner.plan(self._slots.arenas, self._take())
            logits = self.model.forward(plan)
            self._advance(plan)
            if plan.sampling:
                self._sample(logits, plan.sampling)
        finally:
            self._busy = (busy_s + time.perf_counter() - started, None)

    def _seat_waiting(self) -> None:
        for call in list(self._waiting):
            if self.running >= self._limit:
                return
            if call.leader is None or call.leader.row < 0 or call.leader.kv_len >= call.shared:
                self._seat(call)

    def _seat(self, call: Call) -> None:
        """Give the call a row and the longest prefix at hand, or note whose prefill it waits for."""
        prompt = np.array(call.tokens, np.int32)
        # At least the last token is computed, because its logits are needed.
        usable, worth = prompt[:-1], min(_WORTH_SHARING, max(1, call.prompt_len // 2))
        running = self._prompts.match(usable, lambda other: other.kv_version == self.policy_version)
        retained = self._retained.match(usable, session=call.session, version=self.policy_version)
        at_hand = retained[1] if retained is not None else 0
        call.leader = None
        if running is not None and running[1] >= at_hand + worth:
            other, shared = running
            if other.kv_len < shared:
                call.leader, call.shared = other, shared
                return
            self._begin(call, prompt, shared)
            self._slots.kv(call).copy_(self._slots.kv(other, shared))
            call.kv_version = other.kv_version
        elif retained is not None and at_hand >= worth:
            entry = retained[0]
            self._begin(call, prompt, at_hand)
            self._slots.kv(call).copy_(entry.kv[:, :, :at_hand])
            call.kv_version = entry.version
            call.source = entry if entry.session == call.session and at_hand == len(entry.tokens) else None
        else:
            self._begin(call, prompt, 0)

    def _begin(self, call: Call, prompt: Tokens, cached: int) -> None:
        del self._waiting[call]
        call.kv_len = call.cached = cached
        call.kv_version = self.policy_version
        self._slots.seat(call, len(call.tokens))
        self._prompts.insert(prompt, call)

    def _take(self) -> dict[Call, int]:
        """Chunk lengths of the calls that compute more than one token; also makes room in their rows."""
        take: dict[Call, int] = {}
        left = _PREFILL_TOKENS
        for call in self._slots.calls():
            pending = len(call.tokens) - call.kv_len
            if pending > 1 and left > 0:
                take[call] = min(pending, 1 + left)
                left -= take[call] - 1
            if len(call.tokens) > self._slots.arenas[call.arena].length:
                self._slots.reserve(call, len(call.tokens))
        return take

    def _advance(self, plan: Plan) -> None:
        for call, count in plan.chunks:
            if call.kv_len < call.prompt_len:
                self.prefilled_tokens += min(count, call.prompt_len - call.kv_len)
            call.kv_len += count

    def _sample(self, logits: torch.Tensor, calls: list[Call]) -> None:
        drawn = draw(logits, calls)
        self.sampled_tokens += len(calls)
        for call, token, logprob, support in zip(calls, drawn.token_ids, drawn.logprobs, drawn.support, strict=True):
            if token < 0:
                self._break(call)
                continue
            finish = call.accept(token, logprob, self.policy_version, support)
            if finish is not None:
                self._finish(call, finish)
            elif call.stream:
                call.post(call.chunk())

    def _finish(self, call: Call, reason: FinishReason) -> None:
        self._unseat(call)
        call.post(call.chunk(reason))

    def _break(self, call: Call) -> None:
        """End a call whose logits are not numbers; its KV is worth nothing."""
        self._slots.wipe(call)
        call.kv_len = 0
        self._unseat(call)
        call.post(EngineError(f"the model's logits under version {self.policy_version} are not finite; training has diverged"))

    def _unseat(self, call: Call) -> None:
        """Take the call's row back and retain what it computed."""
        self._prompts.remove(np.array(call.tokens[: call.prompt_len], np.int32), call)
        if call.kv_len > 0:
            if call.source is not None:
                self._retained.drop(call.source)
            tokens = np.array(call.tokens[: call.kv_len], np.int32)
            self._retained.add(Retained(tokens, self._slots.kv(call).clone(), call.session, call.kv_version))
        self._slots.unseat(call)
