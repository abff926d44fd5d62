"""What moves when weights are published: a description that fits in a message, and a payload that it points to.

`locator` means something only to the transport that wrote it (a path in shared memory, a URL). No other code opens it.
"""

from typing import Literal

import msgspec

Transport = Literal["shared", "file", "nccl", "ipc", "sparse_nccl"]


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor of a payload."""

    name: str
    """As in the model's state_dict (Hugging Face names)."""
    dtype: str
    """safetensors spelling: "F32", "BF16", "F16"."""
    shape: tuple[int, ...]
    offset: int
    """bytes from the start of the payload"""
    nbytes: int
    crc32: int


class WeightUpdate(msgspec.Struct, frozen=True):
    """One publication. An engine prepares it (transfer, check, stage) while it generates, then loads it in one go."""

    version: int
    """The policy_version that the tokens sampled from it will carry."""
    transport: Transport
    locator: str
    tensors: tuple[TensorEntry, ...]
    base: int | None = None
    """The version that a delta applies to; None: a full payload."""
