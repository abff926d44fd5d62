"""The journal of turns: append-only, one file an episode, written before a turn's last byte goes to its client.

A file an episode keeps the disk bounded (sealing moves the turns into the blob and deletes the file) and makes a kill cheap to survive:
what was journalled can still be sealed by the gateway that comes next.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from agentrl.episode import Turn, encode_turn, read_turns
from agentrl.errors import StoreError


class Journal:
    """Turns by episode, in a local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, episode: str, turn: Turn) -> None:
        """Raises StoreError if the turn cannot be written; then nothing of it remains."""
        frame = encode_turn(turn)
        path = self._path(episode)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as cause:
            raise StoreError(f"cannot journal a turn in {path}: {cause.strerror}; free disk space or point the run elsewhere") from cause
        try:
            size = os.fstat(file).st_size
            try:
                written = os.write(file, frame)
            except OSError as cause:
                raise StoreError(
                    f"cannot journal a turn in {path}: {cause.strerror}; free disk space or point the run elsewhere"
                ) from cause
            if written < len(frame):
                os.ftruncate(file, size)
                raise StoreError(f"cannot journal a turn in {path}: the disk is full; free some space or point the run elsewhere")
        finally:
            os.close(file)

    def read(self, episode: str) -> Iterator[Turn]:
        """The turns that survive; a torn last one ends them."""
        path = self._path(episode)
        if path.exists():
            with path.open("rb") as file:
                yield from read_turns(file, torn_tail=True)

    def drop(self, episode: str) -> None:
        self._path(episode).unlink(missing_ok=True)

    def _path(self, episode: str) -> Path:
        return self._folder / f"{quote(episode, safe='')}.turns"
