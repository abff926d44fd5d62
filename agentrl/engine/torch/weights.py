"""A weight update in two phases: everything that can go wrong happens beside the live weights; the commit only swaps pointers.

Staging checks every byte against the manifest and builds private tensors of the model's own dtype on its device, in a thread of its own,
while generation goes on. It costs one more copy of the weights in memory, and the commit between two forwards takes no time to speak of.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agentrl.engine.torch.lean import Weights
from agentrl.engine.torch.model import SlotModel
from agentrl.errors import WeightError
from agentrl.weights.codec import read_payload
from agentrl.weights.publish import DTYPE_NAMES
from agentrl.weights.update import WeightUpdate

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Staged:
    """Private tensors, ready to become the live ones."""

    version: int
    tensors: dict[str, Tensor]
    """By every name that they have."""
    lean: Weights | None


class LiveWeights:
    """The tensors that a model computes with, by every name they have (tied weights have several)."""

    def __init__(self, model: SlotModel) -> None:
        self._model = model
        self._live = model.named_tensors()

    def stage(self, update: WeightUpdate) -> Staged:
        """Read and check a full payload. Raises WeightError if it does not fit the model exactly."""
        if update.transport != "shared" or update.base is not None:
            raise WeightError(f"version {update.version}: the embedded engine takes full payloads by the transport 'shared'")
        self._check_names(update)
        payload = read_payload(Path(update.locator), update.tensors)
        staged: dict[int, Tensor] = {}
        for entry in update.tensors:
            live = self._live[entry.name]
            # numpy copies without holding the interpreter, so the engine's thread goes on.
            raw = torch.from_numpy(np.array(payload[entry.name])).view(_DTYPES[entry.dtype])
            staged[id(live)] = raw.reshape(entry.shape).to(device=live.device, dtype=live.dtype)
        tensors = {name: staged[id(live)] for name, live in self._live.items()}
        return Staged(version=update.version, lean=self._model.fuse(tensors), tensors=tensors)

    def commit(self, staged: Staged) -> None:
        """Make staged tensors the live ones. No forward may run."""
        for name, tensor in staged.tensors.items():
            self._live[name].data = tensor
        self._model.lean_weights = staged.lean

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
