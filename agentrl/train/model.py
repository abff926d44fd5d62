"""The policy under training: a Hugging Face model, run over packed rows, its head replaced by the chunked one.

Weights are held in fp32 whatever the model's dtype: at RL's learning rates most updates are smaller than half a step of bf16 and would be
lost. With dtype bfloat16 the forward computes in it (autocast), and what is published is rounded to it, as the sampler has it.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from agentrl.errors import CheckpointError, ConfigError, boundary
from agentrl.train.attention import PACKED, register
from agentrl.train.forest import LEAST_SHARED
from agentrl.train.head import HeadOutput, logprobs_of
from agentrl.train.packing import Packed, Ragged, pack

Dtype = Literal["float32", "bfloat16"]


class PolicyModel:
    """One causal language model on one device."""

    def __init__(self, model: Any, *, dtype: Dtype = "float32", gradient_checkpointing: bool = False) -> None:
        """`model` is a transformers causal LM in fp32. Raises ConfigError if packing it would change its numbers."""
        register()
        self.model = model
        self.dtype = getattr(torch, dtype)
        self.device: torch.device = next(model.parameters()).device
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self._prove_packing()
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def logprobs(self, packed: Packed) -> HeadOutput:
        """Of the trained tokens of a packed row, in their order."""
        hidden = self._hidden(packed.token_ids, packed.position, packed=packed.segments)
        head = self.model.get_output_embeddings()
        return logprobs_of(hidden[0, packed.predictors], head.weight, getattr(head, "bias", None), packed.targets, packed.temperature)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Tied ones once, under the first of their names."""
        named: Iterator[tuple[str, nn.Parameter]] = self.model.named_parameters()
        return named

    def _hidden(self, token_ids: Tensor, position: Tensor, **kwargs: Any) -> Tensor:
        half = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype) if half else nullcontext():
            out = self.model.base_model(input_ids=token_ids, position_ids=position, use_cache=False, **kwargs)
        hidden: Tensor = out.last_hidden_state
        return hidden.to(self.dtype)

    @torch.no_grad()
    def _prove_packing(self) -> None:
        """Short rows packed, two of them with one beginning, must score as each does alone through the model's own attention and head.

        It catches windows, masks, scaled or capped logits and whatever else a new architecture may bring.
        """
        rows = _proof_rows(self.model.get_output_embeddings().weight.shape[0])
        self.model.set_attn_implementation("eager")
        alone = torch.cat([self._alone(row) for row in rows])
        self.model.set_attn_implementation(PACKED)
        with boundary(ConfigError, f"{type(self.model).__name__} cannot be trained on packed rows"):
            gap = float((self.logprobs(pack(rows, self.device)).logprobs - alone).abs().max())
        if not gap < (1e-3 if self.dtype == torch.float32 else 0.3):
            raise ConfigError(
                f"{type(self.model).__name__} gives other logprobs on packed rows than alone (by {gap:.2g} nats); "
                "use a model with full attention and a plain head, such as Llama, Qwen2, Qwen3 or SmolLM2"
            )

    def _alone(self, row: Ragged) -> Tensor:
        """[tokens - 1] as transformers scores it."""
        token_ids = torch.from_numpy(row.token_ids.astype(np.int64)).to(self.device)
        logprobs = self.model(input_ids=token_ids[None], use_cache=False).logits[0, :-1].float().log_softmax(-1)
        scored: Tensor = logprobs.gather(1, token_ids[1:, None])[:, 0]
        return scored


def _proof_rows(vocab: int) -> list[Ragged]:
    """One row apart, and two that share what is worth sharing and then go on differently."""
    tokens = (np.arange(1, 3 * LEAST_SHARED) * 7919 % vocab).astype(np.int32)
    found = [tokens[-5:], tokens[: LEAST_SHARED + 4], np.concatenate([tokens[: LEAST_SHARED + 1], tokens[-7:]])]
    return [Ragged(ids, np.arange(len(ids)) > 0, np.ones(len(ids), np.float32)) for ids in found]


def load_model(folder: Path, *, dtype: Dtype, device: torch.device, gradient_checkpointing: bool = False) -> PolicyModel:
    """From a folder in Hugging Face format. Raises CheckpointError if there is none that can be read."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} is not a Hugging Face model folder: it has no config.json; name a folder written by save_pretrained"
        )
    with boundary(CheckpointError, f"load the model in {folder}"):
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    # transformers fills what it does not find with random numbers.
    if lacking := sorted(info["missing_keys"]):
        raise CheckpointError(
            f"the weights in {folder} lack {', '.join(map(str, lacking[:3]))}; they are torn or of another model than config.json"
        )
    return PolicyModel(model.to(device), dtype=dtype, gradient_checkpointing=gradient_checkpointing)


def pick_device(name: str) -> torch.device:
    """ "auto" is the best that is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device='cuda': torch sees no CUDA device here; use train.device=cpu, or auto")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("train.device='mps': torch sees no Apple GPU here; use train.device=cpu, or auto")
    return torch.device(name)
