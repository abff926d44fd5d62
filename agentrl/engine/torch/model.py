"""A Hugging Face model that runs packed steps, and the proof that it does so rightly.

Any full-attention causal language model runs through its own module, with only the attention replaced. Whether a model is of that kind is
read from its config where the config says so, and then proven: the packed forward must agree with the model's own on a short text, in
chunks and token by token, before it serves anything.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl.engine.torch.attention import NAME, Plan, Planner, transformers_attention
from agentrl.engine.torch.call import Call
from agentrl.engine.torch.lean import LeanDecoder, Weights, fits
from agentrl.engine.torch.slots import Slots
from agentrl.episode import Sampling
from agentrl.errors import ConfigError

_LONGEST_DEFAULT = 4096
_PROOF_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""nats, largest difference of a logprob among likely tokens"""


class SlotModel:
    """The model with what the engine must know about it."""

    def __init__(self, module: Any, *, context_length: int | None = None, lean: bool = True) -> None:
        """`lean=False` runs the module itself, also where a lean forward is known."""
        config = module.config
        _refuse_other_attention(config)
        made_for = int(config.max_position_embeddings)
        self.context_length = context_length or min(made_for, _LONGEST_DEFAULT)
        if self.context_length > made_for:
            raise ConfigError(f"engine.context_length={context_length}, but the model was made for {made_for} tokens; use at most that")
        self.module = module.eval()
        self.dtype: torch.dtype = module.dtype
        self.device: torch.device = module.device
        self.layers = int(config.num_hidden_layers)
        self.vocab_size = int(config.vocab_size)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self.kv_width = kv_heads * head_dim
        self.eos_token_ids = _eos_token_ids(module)
        self.planner = Planner(context_length=self.context_length, dtype=self.dtype, device=self.device)
        self.lean_weights: Weights | None = None
        """Fused weights of the lean forward; None: the module's own forward runs."""
        self._lean = LeanDecoder(module, context_length=self.context_length) if lean and fits(config) else None
        self.enter_device()
        self._prove()

    def named_tensors(self) -> dict[str, Tensor]:
        """Everything that a payload holds, by every name it has (tied weights have several)."""
        saved = self.module.state_dict().keys()
        tensors = [*self.module.named_parameters(remove_duplicate=False), *self.module.named_buffers()]
        return {name: tensor for name, tensor in tensors if name in saved}

    def fuse(self, tensors: dict[str, Tensor]) -> Weights | None:
        """The lean form of these weights, which `tensors` (as named_tensors has them) then views; None without a lean forward."""
        return self._lean.fuse(tensors) if self._lean is not None else None

    def enter_device(self) -> None:
        """Bring the weights to the device and into the form that the forward wants."""
        self.module.to(self.device)
        live = self.named_tensors()
        shared = {name: tensor.detach() for name, tensor in live.items()}
        self.lean_weights = self.fuse(shared)
        for name, tensor in shared.items():
            live[name].data = tensor

    def leave_device(self) -> None:
        """Give the device's memory back; no forward may run until enter_device."""
        self.lean_weights = None
        self.module.to("cpu")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def slots(self) -> Slots:
        return Slots(context_length=self.context_length, layers=self.layers, width=self.kv_width, dtype=self.dtype, device=self.device)

    def forward(self, plan: Plan) -> Tensor:
        """[sampling, vocab] logits after the tokens plan.keep."""
        if self._lean is not None and self.lean_weights is not None:
            return self._lean.forward(self.lean_weights, plan)
        output = self.module(
            input_ids=plan.token_ids, position_ids=plan.positions, use_cache=False, logits_to_keep=plan.keep, slots_plan=plan
        )
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def _prove(self) -> None:
        """Compare with the model's own forward; then switch its attention to ours for good."""
        ids = torch.randint(self.vocab_size, (1, min(24, self.context_length)), generator=torch.Generator().manual_seed(0)).to(self.device)
        expected = self.module(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
        ALL_ATTENTION_FUNCTIONS.register(NAME, transformers_attention)
        self.module.config._attn_implementation = NAME
        try:
            actual = self._replay(ids[0].tolist()).float().log_softmax(-1)
        except (AttributeError, KeyError, RuntimeError, TypeError) as cause:
            raise ConfigError(f"{self.module.config.model_type} cannot run on the embedded engine ({cause}); {_ADVICE}") from cause
        likely = expected > -20
        worst = float((actual - expected)[likely].abs().max())
        if not worst <= _PROOF_TOLERANCE[self.dtype]:
            raise ConfigError(
                f"{self.module.config.model_type}: the packed forward differs from the model's own by {worst:.3g} nats; {_ADVICE}"
            )

    def _replay(self, ids: list[int]) -> Tensor:
        """[tokens, vocab] logits, from chunks of growing length and single tokens."""
        slots = self.slots()
        call = _proof_call()
        slots.seat(call, len(ids))
        logits: list[Tensor] = []
        while call.kv_len < len(ids):
            count = min(len(ids) - call.kv_len, 1 + call.kv_len // 2)
            call.tokens = ids[: call.kv_len + count]
            plan = self.planner.plan(slots.arenas, {call: count})
            plan.keep = torch.arange(count, device=self.device)
            # The newest token comes first in a packed step.
            logits.append(self.forward(plan).roll(-1, 0))
            call.kv_len += count
        return torch.cat(logits)


def load_model(folder: Path, *, dtype: str, device: str, context_length: int | None = None) -> SlotModel:
    """Read a model from a local folder in Hugging Face format onto `device` ("auto" picks CUDA, then MPS, then the CPU)."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json; give a folder in Hugging Face format")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    _refuse_other_attention(config)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True)
    return SlotModel(module.to(pick_device(device)), context_length=context_length)


def pick_device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


_ADVICE = "use a full-attention model of the Llama or Qwen families, or another engine"


def _refuse_other_attention(config: Any) -> None:
    """Raises ConfigError for attention that our rows of keys and values cannot express."""
    name = config.model_type
    other = sorted({kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"})
    if other:
        raise ConfigError(f"{name} has layers of kind {', '.join(other)}, and the embedded engine has full attention only; {_ADVICE}")
    if getattr(config, "sliding_window", None):
        raise ConfigError(
            f"{name} has a sliding window of {config.sliding_window}, and the embedded engine has full attention only; {_ADVICE}"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise ConfigError(f"{name} has {rope} position scaling, which depends on the longest text of a step; {_ADVICE}")
    for field in ("attn_logit_softcapping", "kv_lora_rank"):
        if getattr(config, field, None):
            raise ConfigError(f"{name} sets {field}, which the embedded engine does not serve; {_ADVICE}")


def _eos_token_ids(module: Any) -> tuple[int, ...]:
    ids: set[int | None] = set()
    generation: GenerationConfig | None = getattr(module, "generation_config", None)
    for config in (module.config, generation):
        value = getattr(config, "eos_token_id", None)
        ids |= set(value) if isinstance(value, (list, tuple)) else {value}
    return tuple(sorted(id for id in ids if id is not None))


def _proof_call() -> Call:
    return Call(
        tokens=[],
        prompt_len=0,
        sampling=Sampling(max_tokens=1),
        session="",
        stream=False,
        completion_limit=1,
        stop_ids=frozenset(),
        stop_strings=None,
        uniform=lambda: 0.0,
        post=lambda outcome: None,
    )
