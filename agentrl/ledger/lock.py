"""One controller per run folder. The kernel drops the lock with the process, so a killed run never blocks its resume."""

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from agentrl.errors import LedgerError


class RunLock:
    """Held from construction to `close`. Raises LedgerError, naming the holder, if another process has it."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a+")
        except OSError as cause:
            raise LedgerError(f"cannot lock the run folder {path.parent}: {cause}; is it yours to write to?") from cause
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise LedgerError(f"the run folder {path.parent} is in use by {holder}; wait for its end, or choose another --name") from cause
        # The name is for people who find the run in use; on a full disk the lock holds without it.
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
