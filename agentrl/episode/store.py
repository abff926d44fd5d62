"""The binary form of turns and episodes: checked frames, one after another.

A blob is one frame with the record and one frame a turn, so that a reader can take the record alone, or stream turns without holding the
episode. The gateway's journal is the same frames. Each frame carries its length and a checksum: a process killed in mid-write leaves a
torn tail that a reader sees as such. Arrays are their little-endian bytes; JSON never holds a token.

    blob   = frame(record) frame(turn)*
    frame  = length: u32 · crc32: u32 · msgpack bytes
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentrl.episode.chat import ChatMessage, ToolSpec
from agentrl.episode.record import SCHEMA, EpisodeRecord
from agentrl.episode.turn import FinishReason, Parent, Sampling, Span, Support, Turn, TurnKind
from agentrl.errors import StoreError

_HEADER = struct.Struct("<II")


class _TurnDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """A turn on disk. Array fields are little-endian bytes of the dtype that `Turn` names."""

    id: str
    agent_run: str
    parent: Parent | None
    prompt_ids: bytes
    completion_ids: bytes
    mask: bytes
    sampler_logprobs: bytes
    spans: tuple[Span, ...]
    kv_oldest_version: int
    sampling: Sampling
    finish_reason: FinishReason
    policy: str = "policy"
    kind: TurnKind = "main"
    template: str = ""
    placement: str = "exact"
    messages: tuple[ChatMessage, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    reply: ChatMessage | None = None
    support: tuple[bytes, bytes] | None = None
    routing: bytes | None = None
    routing_shape: tuple[int, int, int] = (0, 0, 0)
    started_at: float = 0.0
    ended_at: float = 0.0
    reward: float | None = None
    schema: int = SCHEMA


_PLAIN = tuple(
    name
    for name in _TurnDoc.__struct_fields__
    if name not in {"prompt_ids", "completion_ids", "mask", "sampler_logprobs", "support", "routing", "routing_shape", "schema"}
)
_encoder = msgspec.msgpack.Encoder()
_turn_decoder = msgspec.msgpack.Decoder(_TurnDoc)
_record_decoder = msgspec.msgpack.Decoder(EpisodeRecord)


def encode_turn(turn: Turn) -> bytes:
    """One frame."""
    doc = _TurnDoc(
        prompt_ids=_bytes(turn.prompt_ids, "<i4"),
        completion_ids=_bytes(turn.completion_ids, "<i4"),
        mask=_bytes(turn.mask, "?"),
        sampler_logprobs=_bytes(turn.sampler_logprobs, "<f4"),
        support=None if turn.support is None else (_bytes(turn.support.indptr, "<i8"), _bytes(turn.support.ids, "<i4")),
        routing=None if turn.routing is None else _bytes(turn.routing, "u1"),
        routing_shape=(0, 0, 0) if turn.routing is None else turn.routing.shape,
        **{name: getattr(turn, name) for name in _PLAIN},
    )
    return _frame(_encoder.encode(doc))


def encode_record(record: EpisodeRecord) -> bytes:
    """One frame."""
    return _frame(_encoder.encode(record))


def write_episode(file: BinaryIO, record: EpisodeRecord, turns: Iterable[Turn]) -> None:
    """Write a blob. `turns` in the order they were made, each after its parent."""
    file.write(encode_record(record))
    for turn in turns:
        file.write(encode_turn(turn))


def read_record(file: BinaryIO) -> EpisodeRecord:
    """The record of a blob, leaving the file before its first turn. Raises StoreError on a torn or newer blob."""
    payload = _read_frame(file)
    if payload is None:
        raise StoreError("the episode blob is empty")
    try:
        record = _record_decoder.decode(payload)
    except msgspec.MsgspecError as cause:
        raise StoreError(f"the episode blob does not start with a record: {cause}") from cause
    _check_schema(record.schema)
    return record


def read_turns(file: BinaryIO, *, torn_tail: bool = False) -> Iterator[Turn]:
    """Stream the turns from here on. A torn last frame raises StoreError, or ends the stream if `torn_tail` (a journal after a kill)."""
    while True:
        try:
            payload = _read_frame(file)
        except StoreError:
            if torn_tail:
                return
            raise
        if payload is None:
            return
        yield _turn(payload)


def _turn(payload: bytes) -> Turn:
    try:
        doc = _turn_decoder.decode(payload)
    except msgspec.MsgspecError as cause:
        raise StoreError(f"a frame is not a turn: {cause}") from cause
    _check_schema(doc.schema)
    return Turn(
        prompt_ids=np.frombuffer(doc.prompt_ids, "<i4"),
        completion_ids=np.frombuffer(doc.completion_ids, "<i4"),
        mask=np.frombuffer(doc.mask, "?"),
        sampler_logprobs=np.frombuffer(doc.sampler_logprobs, "<f4"),
        support=None if doc.support is None else Support(np.frombuffer(doc.support[0], "<i8"), np.frombuffer(doc.support[1], "<i4")),
        routing=None if doc.routing is None else np.frombuffer(doc.routing, "u1").reshape(doc.routing_shape),
        **{name: getattr(doc, name) for name in _PLAIN},
    )


def _check_schema(schema: int) -> None:
    if schema > SCHEMA:
        raise StoreError(f"the blob has schema {schema} and this agentrl reads up to {SCHEMA}; read it with the agentrl that wrote it")


def _bytes(array: NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def _frame(payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def _read_frame(file: BinaryIO) -> bytes | None:
    """The next frame's payload; None at the end of the file."""
    header = file.read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise StoreError("a frame is torn in its header")
    length, crc = _HEADER.unpack(header)
    payload = file.read(length)
    if len(payload) < length:
        raise StoreError(f"a frame is torn: {len(payload)} of {length} bytes")
    if zlib.crc32(payload) != crc:
        raise StoreError("a frame fails its checksum")
    return payload
