"""A payload is one file of raw tensors, and its manifest travels in the message.

The manifest (`WeightUpdate.tensors`) has each tensor's place and CRC-32, so a reader proves every byte before any of it can reach a model,
and the file needs no header that could disagree with the message. The file appears under its name only when it is whole.
"""

import math
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import WeightError
from agentrl.weights.update import TensorEntry

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_ALIGN = 64
"""Tensors start at multiples of this many bytes, so that a mapped file can be viewed as any dtype."""


class RawTensor(NamedTuple):
    """A tensor without a library: its bytes in C order, little-endian."""

    name: str
    dtype: str
    """safetensors spelling, a key of ITEM_BYTES"""
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    """[nbytes]"""


def write_payload(path: Path, tensors: Iterable[RawTensor]) -> tuple[TensorEntry, ...]:
    """Write the file atomically; returns its manifest. Raises WeightError if the disk refuses (the message has the reason)."""
    entries: list[TensorEntry] = []
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    offset = 0
    try:
        with partial.open("wb") as file:
            for tensor in tensors:
                gap = -offset % _ALIGN
                file.write(bytes(gap))
                file.write(tensor.data.data)
                entries.append(_entry(tensor, offset + gap))
                offset += gap + tensor.data.nbytes
        partial.replace(path)
    except OSError as cause:
        partial.unlink(missing_ok=True)
        raise WeightError(f"cannot write weights to {path}: {cause.strerror}; free space there or choose another folder") from cause
    return tuple(entries)


def _entry(tensor: RawTensor, offset: int) -> TensorEntry:
    return TensorEntry(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        offset=offset,
        nbytes=tensor.data.nbytes,
        crc32=zlib.crc32(tensor.data.data),
    )


def read_payload(path: Path, entries: Sequence[TensorEntry]) -> dict[str, NDArray[np.uint8]]:
    """Each tensor's bytes by name: read-only views of the mapped file, every one checked. Raises WeightError if anything is wrong."""
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as cause:
        raise WeightError(f"cannot read weights at {path}: {cause.strerror}; publish them again") from cause
    return {entry.name: _checked(mapped, entry, path) for entry in entries}


def _checked(mapped: NDArray[np.uint8], entry: TensorEntry, path: Path) -> NDArray[np.uint8]:
    if entry.dtype not in ITEM_BYTES:
        raise WeightError(f"tensor {entry.name} in {path} has dtype {entry.dtype}; known are {', '.join(ITEM_BYTES)}")
    if entry.nbytes != math.prod(entry.shape) * ITEM_BYTES[entry.dtype]:
        raise WeightError(f"tensor {entry.name} in {path}: {entry.nbytes} bytes cannot hold {entry.dtype} {list(entry.shape)}")
    if entry.offset < 0 or entry.offset + entry.nbytes > len(mapped):
        raise WeightError(f"tensor {entry.name} lies outside {path} ({len(mapped)} bytes): the payload is torn; publish it again")
    data = mapped[entry.offset : entry.offset + entry.nbytes]
    if zlib.crc32(data.data) != entry.crc32:
        raise WeightError(f"tensor {entry.name} in {path} fails its checksum; publish the payload again")
    return data
