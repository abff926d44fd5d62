"""Folders that are made once and then only read. A folder appears under its name when it is whole, or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentrl.errors import ConfigError, boundary


def cached(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`; if it is not there, what `make` writes into an empty one. Raises ConfigError if it cannot be written."""
    if folder.is_dir():
        return folder
    with boundary(ConfigError, f"write {folder} (is there room, and may it be written?)"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
        try:
            make(partial)
            partial.chmod(0o755)
            _publish(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _publish(partial: Path, folder: Path) -> None:
    """Another process may have been first, with an equal folder."""
    try:
        os.rename(partial, folder)
    except OSError:
        if not folder.is_dir():
            raise
