"""A weight update in two phases: everything that can go wrong happens beside the live weights; the commit only swaps pointers.

Staging checks every byte against the manifest and builds private tensors of the model's own dtype on its device, in a thread of its own,
while generation goes on. It costs one more copy of the weights in memory, and the commit between two forwards takes no time to speak of.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import WeightError
from agentrl.weights.codec import read_payload
from agentrl.weights.publish import DTYPE_NAMES
from agentrl.weights.update import WeightUpdate

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class LiveWeights:
    """The tensors that a module computes with, by every name they have (tied weights have several)."""

    def __init__(self, module: Any) -> None:
        saved = module.state_dict().keys()
        tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
        self._live: dict[str, Tensor] = {name: tensor for name, tensor in tensors if name in saved}

    def stage(self, update: WeightUpdate) -> dict[str, Tensor]:
        """Read and check a full payload; the result is private memory. Raises WeightError if it does not fit the model exactly."""
        if update.transport != "shared" or update.base is not None:
            raise WeightError(f"version {update.version}: the embedded engine takes full payloads by the transport 'shared'")
        self._check_names(update)
        payload = read_payload(Path(update.locator), update.tensors)
        staged: dict[str, Tensor] = {}
        for entry in update.tensors:
            live = self._live[entry.name]
            raw = torch.frombuffer(bytearray(payload[entry.name].data), dtype=_DTYPES[entry.dtype])
            staged[entry.name] = raw.reshape(entry.shape).to(device=live.device, dtype=live.dtype)
        return staged

    def commit(self, staged: dict[str, Tensor]) -> None:
        """Make staged tensors the live ones. No forward may run."""
        for name, tensor in staged.items():
            self._live[name].data = tensor

    def _check_names(self, update: WeightUpdate) -> None:
        unknown = [entry.name for entry in update.tensors if entry.name not in self._live]
        covered = {id(self._live[entry.name]) for entry in update.tensors if entry.name in self._live}
        missing = [name for name, tensor in self._live.items() if id(tensor) not in covered]
        if unknown or missing:
            raise WeightError(f"version {update.version} is of another model: it lacks {missing[:3]} and has unknown {unknown[:3]}")
        for entry in update.tensors:
            if tuple(self._live[entry.name].shape) != entry.shape:
                raise WeightError(
                    f"version {update.version} is of another model: {entry.name} is {list(entry.shape)}, "
                    f"and the engine has {list(self._live[entry.name].shape)}"
                )
