"""How a process writes its log: to stderr, which its parent points at a file in the run folder."""

import logging
import sys


def log_to_stderr(process: str) -> None:
    """Call once, first thing in a process's main."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    # One line a request would bury what a failure's last lines are read for.
    logging.getLogger("httpx").setLevel(logging.WARNING)
