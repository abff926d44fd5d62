"""Where the keys and values of running calls live: arenas of rows of one length, which doubles from arena to arena.

Calls of similar length share an arena, so one attention over all of its rows, padded to the longest, wastes less than half; and memory
follows what the calls need, not slots × context. The rows in use are always the first ones (the last row fills the hole of one that
leaves), so the attention reads them in place, without a gather.
"""

import torch
from torch import Tensor

from agentrl.engine.torch.call import Call

_SHORTEST = 128
"""Tokens of a row in the first arena."""
_FEWEST = 8
"""Rows that an arena starts with."""


class Arena:
    """Rows of `length` tokens; `calls[i]` owns row i."""

    def __init__(self, length: int, layers: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = length
        self.calls: list[Call] = []
        self.kv: Tensor = torch.empty(layers, 2, 0, length, width, dtype=dtype, device=device)
        """[layers, 2, rows, length, width] keys and values"""
        self.layers: list[tuple[Tensor, Tensor]] = []
        """Per layer, keys and values as [rows * length, width], to write to."""

    def append(self, call: Call) -> int:
        if len(self.calls) == self.kv.shape[2]:
            self._grow()
        self.calls.append(call)
        return len(self.calls) - 1

    def _grow(self) -> None:
        held = self.kv
        layers, two, rows, length, width = held.shape
        # Zeros, because attention multiplies what it masks by 0, and that must be a number.
        self.kv = held.new_zeros(layers, two, max(_FEWEST, 2 * rows), length, width)
        self.kv[:, :, :rows].copy_(held)
        self.layers = [(layer[0].flatten(0, 1), layer[1].flatten(0, 1)) for layer in self.kv]


class Slots:
    """All arenas. A call is in at most one of them."""

    def __init__(self, *, context_length: int, layers: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (layers, width, dtype, device)
        self._context_length = context_length
        self.arenas: list[Arena] = []
        self._build()

    def _build(self) -> None:
        length = min(_SHORTEST, self._context_length)
        lengths = [length]
        while lengths[-1] < self._context_length:
            lengths.append(min(2 * lengths[-1], self._context_length))
        self.arenas = [Arena(length, *self._shape) for length in lengths]

    def __len__(self) -> int:
        return sum(len(arena.calls) for arena in self.arenas)

    def calls(self) -> list[Call]:
        return [call for arena in self.arenas for call in arena.calls]

    def seat(self, call: Call, tokens: int) -> None:
        """Give the call a row that holds at least `tokens`."""
        call.arena = next(index for index, arena in enumerate(self.arenas) if arena.length >= tokens)
        call.row = self.arenas[call.arena].append(call)

    def reserve(self, call: Call, tokens: int) -> None:
        """Move the call to a longer row if its own cannot hold `tokens`."""
        if self.arenas[call.arena].length < tokens:
            arena, row = call.arena, call.row
            held = self.kv(call)
            self.seat(call, tokens)
            self.kv(call).copy_(held)
            self._close(arena, row)

    def wipe(self, call: Call) -> None:
        """Make the call's row numbers again, after a forward that gave none."""
        self.arenas[call.arena].kv[:, :, call.row].zero_()

    def unseat(self, call: Call) -> None:
        """Give the row back."""
        self._close(call.arena, call.row)
        call.arena = call.row = -1

    def kv(self, call: Call, tokens: int | None = None) -> Tensor:
        """[layers, 2, tokens, width] the call's first `tokens` (default: all that are computed), as a view."""
        return self.arenas[call.arena].kv[:, :, call.row, : call.kv_len if tokens is None else tokens]

    def _close(self, index: int, row: int) -> None:
        arena = self.arenas[index]
        last = arena.calls.pop()
        if row < len(arena.calls):
            arena.kv[:, :, row, : last.kv_len].copy_(arena.kv[:, :, last.row, : last.kv_len])
            arena.calls[row] = last
            last.row = row

    def release(self) -> None:
        """Give all memory back. No call may be seated."""
        self._build()
