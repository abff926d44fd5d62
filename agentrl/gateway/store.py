"""Episode blobs in the run's folder, which may be on any file system that fsspec knows.

A blob appears whole or not at all: it is written under another name and moved. Its handle is its name within the store, so the trainer may
reach the same store by another URL.
"""

from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, cast
from urllib.parse import quote

import anyio.to_thread
import fsspec
from fsspec.implementations.local import LocalFileSystem

from agentrl.episode import EpisodeRecord, Turn, write_episode
from agentrl.errors import StoreError, boundary

LOOP_TOKENS = 50_000


def handle_of(episode: str) -> str:
    """Where an episode's blob lies, if it has one."""
    return f"episodes/{quote(episode, safe='')}.episode"


class EpisodeStore:
    """The blobs of one run."""

    def __init__(self, url: str) -> None:
        """`url` is the run's folder: a path, or any fsspec URL."""
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._known_folder = False

    async def put(self, record: EpisodeRecord, turns: Sequence[Turn]) -> tuple[str, int]:
        """`write`, for a busy event loop.

        Small blobs go to a local disk at once, which takes a fraction of a millisecond. A thread would wait for the interpreter's lock
        behind the loop, some milliseconds at each system call, and under load blobs would pile up.
        """
        tokens = sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in turns)
        if tokens <= LOOP_TOKENS and isinstance(self._fs, LocalFileSystem):
            return self.write(record, turns)
        return await anyio.to_thread.run_sync(self.write, record, turns)

    def write(self, record: EpisodeRecord, turns: Iterable[Turn]) -> tuple[str, int]:
        """The blob's handle and its size in bytes. Raises StoreError; then no blob of that name exists."""
        handle = handle_of(record.id)
        path = f"{self._root}/{handle}"
        with boundary(StoreError, f"write episode {record.id} to {path}"):
            if not self._known_folder:
                self._fs.makedirs(f"{self._root}/episodes", exist_ok=True)
                self._known_folder = True
            try:
                with self._fs.open(f"{path}.part", "wb") as file:
                    write_episode(cast(BinaryIO, file), record, turns)
                    nbytes = file.tell()
                self._fs.mv(f"{path}.part", path)
            except BaseException:
                self._remove(f"{path}.part")
                raise
        return handle, nbytes

    def open(self, handle: str) -> BinaryIO:
        """A reader for `read_record` and `read_turns`. Raises StoreError."""
        with boundary(StoreError, f"read episode blob {handle} in {self._root}"):
            return cast(BinaryIO, self._fs.open(f"{self._root}/{handle}", "rb"))

    def _remove(self, path: str) -> None:
        try:
            self._fs.rm(path)
        except OSError:
            return
