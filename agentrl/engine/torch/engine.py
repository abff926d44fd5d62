"""The embedded engine as the rest of the program sees it: an `Engine` whose asyncio side only checks, queues and waits."""

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import torch
from tokenizers import Tokenizer

from agentrl.engine.base import Capabilities, Chunk, EngineStatus, PauseMode
from agentrl.engine.config import EngineConfig
from agentrl.engine.mailbox import Mailbox
from agentrl.engine.torch.call import Call
from agentrl.engine.torch.model import SlotModel, load_model
from agentrl.engine.torch.scheduler import Scheduler
from agentrl.engine.torch.stop import StopStrings
from agentrl.engine.torch.weights import LiveWeights, Staged
from agentrl.engine.torch.worker import Worker
from agentrl.episode import Sampling
from agentrl.errors import ContextOverflow, EngineError, EngineQuarantined
from agentrl.weights.update import WeightUpdate


class TorchEngine:
    """Samples from one model on one device. An async context: the engine's thread lives as long as it.

    async with TorchEngine.open(folder, EngineConfig()) as engine:
        async for chunk in engine.generate(ids, Sampling(max_tokens=8), session="", deadline_s=60):
            ...
    """

    def __init__(
        self,
        model: SlotModel,
        config: EngineConfig,
        *,
        tokenizer: Any = None,
        name: str = "policy",
        policy_version: int = 0,
        seed: int | None = None,
        retained_bytes: int | None = None,
    ) -> None:
        """`tokenizer` (a `tokenizers.Tokenizer`) is needed for stop strings only. `seed` is for calls without one of their own."""
        self._model = model
        self._config = config
        self._tokenizer = tokenizer
        self._name = name
        self._weights = LiveWeights(model)
        self._scheduler = Scheduler(
            model,
            slots=config.slots,
            retained_bytes=_retained_budget(model.device) if retained_bytes is None else retained_bytes,
            policy_version=policy_version,
            seed=seed,
        )
        self._staged: Staged | None = None
        self._staging = anyio.Lock()
        self._quarantined = False
        self._mode_before_sleep: PauseMode | None = None
        self._worker: Worker | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        config: EngineConfig,
        *,
        dtype: str = "float32",
        name: str = "policy",
        policy_version: int = 0,
        seed: int | None = None,
    ) -> Self:
        """Load a local folder in Hugging Face format. Slow; call it before the event loop starts or in a thread."""
        torch.set_num_threads(config.threads)
        model = load_model(folder, dtype=dtype, device=config.device, context_length=config.context_length)
        file = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else None
        # What was imported and loaded lives as long as the process; a collection that walks it holds all calls up for a third of a second.
        gc.collect()
        gc.freeze()
        return cls(model, config, tokenizer=tokenizer, name=name, policy_version=policy_version, seed=seed)

    async def __aenter__(self) -> Self:
        self._worker = Worker(self._scheduler, threads=self._config.threads)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        worker, self._worker = self._running(), None
        await worker.close()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            model=self._name,
            context_length=self._model.context_length,
            vocab_size=self._model.vocab_size,
            eos_token_ids=self._model.eos_token_ids,
            support=True,
            keep=True,
        )

    async def status(self) -> EngineStatus:
        scheduler = self._scheduler
        return EngineStatus(
            policy_version=scheduler.policy_version,
            paused=scheduler.paused is not None and (scheduler.paused != "drain" or scheduler.running == 0),
            prepared=self._staged.version if self._staged is not None else None,
            quarantined=self._quarantined,
            running=scheduler.running,
            waiting=scheduler.waiting,
            busy_s=scheduler.busy_s,
            sampled_tokens=scheduler.sampled_tokens,
            prefilled_tokens=scheduler.prefilled_tokens,
        )

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, session: str, deadline_s: float, stream: bool = True
    ) -> AsyncIterator[Chunk]:
        """With `sampling.support`, a call that truncates nothing has support None: the whole vocabulary survived."""
        worker = self._running()
        mailbox = Mailbox()
        call = self._call(prompt_ids, sampling, session, stream, worker, mailbox)
        worker.tell(lambda: self._scheduler.submit(call))
        ended = False
        try:
            with mailbox.deadline(deadline_s, lambda: _late(deadline_s)):
                while not ended:
                    chunk: Chunk = await mailbox.take()
                    ended = chunk.finish_reason is not None
                    yield chunk
        finally:
            if not ended:
                worker.tell(lambda: self._scheduler.cancel(call))

    def _call(self, prompt_ids: list[int], sampling: Sampling, session: str, stream: bool, worker: Worker, mailbox: Mailbox) -> Call:
        """Everything that can be wrong with a call is refused here, before it can disturb the others."""
        model = self._model
        if self._quarantined:
            raise EngineQuarantined("a weight update failed and the weights are of unknown state; load a full payload first")
        if not prompt_ids or not 0 <= min(prompt_ids) <= max(prompt_ids) < model.vocab_size:
            raise EngineError(f"the prompt must have token ids from 0 to {model.vocab_size - 1}")
        if len(prompt_ids) >= model.context_length:
            raise ContextOverflow(f"the prompt has {len(prompt_ids)} tokens and the context {model.context_length}; shorten the prompt")
        if sampling.max_tokens < 1 or not sampling.temperature >= 0.0 or sampling.top_p <= 0.0 or sampling.top_k < 0:
            raise EngineError(f"cannot sample with {sampling}; use max_tokens ≥ 1, temperature ≥ 0, top_p > 0 and top_k ≥ 0")
        if sampling.stop and self._tokenizer is None:
            raise EngineError("stop strings need the model's tokenizer.json in its folder; use stop_token_ids instead")
        return Call(
            tokens=list(prompt_ids),
            prompt_len=len(prompt_ids),
            sampling=sampling,
            session=session,
            stream=stream,
            completion_limit=min(sampling.max_tokens, model.context_length - len(prompt_ids)),
            stop_ids=frozenset(model.eos_token_ids) | frozenset(sampling.stop_token_ids),
            stop_strings=StopStrings(self._tokenizer, sampling.stop) if sampling.stop else None,
            uniform=self._scheduler.uniform_for(sampling.seed),
            post=lambda outcome: worker.post(mailbox, outcome),
        )

    async def pause(self, mode: PauseMode) -> None:
        worker = self._running()
        await worker.ask(lambda: self._scheduler.pause(mode))
        if mode == "drain":
            await worker.drained()

    async def resume(self) -> None:
        if self._quarantined:
            raise EngineQuarantined("a weight update failed; load a full payload before resuming")
        await self._running().ask(self._scheduler.resume)

    async def prepare(self, update: WeightUpdate) -> None:
        async with self._staging:
            if not self._serves(update) and (self._staged is None or self._staged.version != update.version):
                self._staged = None
                self._staged = await anyio.to_thread.run_sync(self._weights.stage, update)

    async def load(self, update: WeightUpdate) -> None:
        """Commits between two forwards; takes milliseconds if the update was prepared."""
        if self._serves(update):
            return
        try:
            await self.prepare(update)
            await self._running().ask(lambda: self._commit(update.version))
        except Exception:
            await self._running().ask(self._quarantine)
            raise

    def _serves(self, update: WeightUpdate) -> bool:
        return not self._quarantined and self._scheduler.policy_version == update.version

    def _commit(self, version: int) -> None:
        if self._staged is None or self._staged.version != version:
            raise EngineError(f"version {version} was replaced by another while it waited to be loaded")
        with torch.inference_mode(False):
            self._weights.commit(self._staged)
        self._staged = None
        self._quarantined = False
        self._scheduler.updated(version)

    def _quarantine(self) -> None:
        self._quarantined = True
        self._scheduler.pause(self._scheduler.paused or "keep")
        self._scheduler.fail(EngineQuarantined("a weight update failed and the weights are of unknown state"))

    async def sleep(self) -> None:
        """Calls that run are aborted; new ones wait for wake()."""
        await self._running().ask(self._fall_asleep)

    def _fall_asleep(self) -> None:
        self._mode_before_sleep = self._scheduler.paused
        self._scheduler.pause("abort")
        self._scheduler.release()
        with torch.inference_mode(False):
            self._model.leave_device()

    async def wake(self) -> None:
        await self._running().ask(self._wake_up)

    def _wake_up(self) -> None:
        with torch.inference_mode(False):
            self._model.enter_device()
        self._scheduler.paused = self._mode_before_sleep

    def _running(self) -> Worker:
        if self._worker is None:
            raise EngineError("the engine is not running; use it inside `async with engine:`")
        return self._worker


def _late(deadline_s: float) -> EngineError:
    return EngineError(f"the call did not end within its deadline of {deadline_s:g} s; it was cancelled")


def _retained_budget(device: torch.device) -> int:
    """Bytes of KV kept between calls: a quarter of a GPU's free memory, or an eighth of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 4
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
