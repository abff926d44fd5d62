"""The journal of turns: append-only, one file an episode, written before a turn's last byte goes to its client.

A file an episode keeps the disk bounded (sealing moves the turns into the blob and deletes the file) and makes a kill cheap to survive:
what was journalled can still be sealed by the gateway that comes next.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from agentrl.episode import Turn, encode_turn, read_turns
from agentrl.errors import StoreError

_OPEN_FILES = 128


class Journal:
    """Turns by episode, in a local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, int] = OrderedDict()
        """File descriptors of the episodes that were written last."""
        folder.mkdir(parents=True, exist_ok=True)
        self.inherited = {unquote(path.stem) for path in folder.glob("*.turns")}
        """Episodes that a gateway before this one journalled turns of."""

    def append(self, episode: str, turn: Turn) -> None:
        """Raises StoreError if the turn cannot be written; then nothing of it remains."""
        frame = encode_turn(turn)
        try:
            file = self._file(episode)
            written = os.write(file, frame)
            if written < len(frame):
                os.ftruncate(file, os.fstat(file).st_size - written)
                raise OSError(0, "the disk is full")
        except OSError as cause:
            path = self._path(episode)
            raise StoreError(
                f"cannot journal a turn in {path}: {cause.strerror}; free some disk space or point the run elsewhere"
            ) from cause

    def _file(self, episode: str) -> int:
        file = self._open.get(episode)
        if file is None:
            file = self._open[episode] = os.open(self._path(episode), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if len(self._open) > _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        return file

    def read(self, episode: str) -> Iterator[Turn]:
        """The turns that survive; a torn last one ends them."""
        path = self._path(episode)
        if path.exists():
            with path.open("rb") as file:
                yield from read_turns(file, torn_tail=True)

    def drop(self, episode: str) -> None:
        file = self._open.pop(episode, None)
        if file is not None:
            os.close(file)
        self._path(episode).unlink(missing_ok=True)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, episode: str) -> Path:
        return self._folder / f"{quote(episode, safe='')}.turns"
