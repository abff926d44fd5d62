"""From a model that is being trained to a payload that engines can read, without holding the next step up.

The snapshot is the only part that must see the model at rest: one copy in memory. Writing and checksumming read the snapshot, so they may
run in a thread while the optimizer goes on. Tied weights are one tensor and are published once, under their first name.
"""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentrl.errors import WeightError
from agentrl.weights.codec import RawTensor, write_payload
from agentrl.weights.update import WeightUpdate

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's tensors at one moment, in host memory, private to this snapshot."""

    tensors: dict[str, Tensor]


def snapshot(state: Mapping[str, Tensor], *, dtype: torch.dtype | None = None) -> Snapshot:
    """Copy a state_dict. `dtype` casts floating-point tensors (bf16 halves the payload); None keeps them."""
    tensors: dict[str, Tensor] = {}
    seen: set[tuple[int, int, torch.Size]] = set()
    for name, tensor in state.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise WeightError(f"tensor {name} has dtype {tensor.dtype}; only {', '.join(map(str, DTYPE_NAMES))} can be published")
        identity = (tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.shape)
        if identity not in seen:
            seen.add(identity)
            tensors[name] = tensor.detach().to(device="cpu", dtype=dtype or tensor.dtype, copy=True).contiguous()
    return Snapshot(tensors)


class WeightPublisher:
    """Writes `shared` payloads into one folder and keeps the last few; readers that mapped an older file keep their view of it."""

    def __init__(self, directory: Path | None = None, *, keep: int = 2) -> None:
        """`directory` None: a fresh folder in shared memory where there is one, else in the temporary folder; removed by close()."""
        if keep < 1:
            raise WeightError(f"keep={keep}: the payload just published must live until engines have read it; use 1 or more")
        self._owned = directory is None
        root = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=root)) if directory is None else directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self._keep = keep

    def publish(self, shot: Snapshot, version: int) -> WeightUpdate:
        """Write the payload of one version; may run in any thread, one at a time."""
        path = self.directory / f"weights-{version}.bin"
        self._remove_all_but(self._keep - 1)
        entries = write_payload(path, (_raw(name, tensor) for name, tensor in shot.tensors.items()))
        return WeightUpdate(version=version, transport="shared", locator=str(path), tensors=entries)

    def close(self) -> None:
        """Remove every payload."""
        self._remove_all_but(0)
        if self._owned:
            self.directory.rmdir()

    def _remove_all_but(self, count: int) -> None:
        payloads = sorted(self.directory.glob("weights-*.bin"), key=_version)
        for path in payloads[: max(0, len(payloads) - count)]:
            path.unlink(missing_ok=True)


def _version(path: Path) -> int:
    match = re.fullmatch(r"weights-(\d+)", path.stem)
    return int(match.group(1)) if match else -1


def _raw(name: str, tensor: Tensor) -> RawTensor:
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    return RawTensor(name=name, dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape), data=data)
