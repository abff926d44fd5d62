"""Pure graders in a process of their own, because no thread can be killed.

A grader that runs a model's code, or a regular expression on a model's text, may never return. `@isolated` sends its arguments to a waiting
process; when the caller's deadline passes, that process is killed and the episode gets its error.
"""

import functools
import importlib
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import anyio.to_process

from agentrl.errors import EnvError

P = ParamSpec("P")
R = TypeVar("R")


def isolated(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Make a module-level sync function awaitable, each call in a process: `await grade(text, answer)`. All values are pickled."""
    if "." in function.__qualname__:
        raise EnvError(f"@isolated {function.__qualname__}: its process imports the function by name, so define it at the top of a module")

    @functools.wraps(function)
    async def elsewhere(*args: P.args, **kwargs: P.kwargs) -> R:
        call = (function.__module__, function.__name__, args, kwargs)
        result: R = await anyio.to_process.run_sync(_call, *call, cancellable=True)
        return result

    return elsewhere


def _call(module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(module), name).__wrapped__(*args, **kwargs)
