"""From what a person writes after --env to an environment: an installed package's name, or `./file.py:Class`."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.config import build, did_you_mean
from agentrl.env.env import Env
from agentrl.errors import ConfigError, EnvError, boundary

GROUP = "agentrl.envs"


def installed() -> dict[str, EntryPoint]:
    """Environments by name, nothing imported."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def load(name: str) -> type[Env]:
    """The class. Raises ConfigError with the right spelling, EnvError if its module cannot be imported."""
    if ".py" in name or "/" in name:
        return _from_file(name)
    known = installed()
    if name not in known:
        raise ConfigError(f"there is no environment {name!r}.{did_you_mean(name, known)} A file is given as ./file.py:Class")
    with _importing(f"environment {name}"):
        found = known[name].load()
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise EnvError(f"environment {name}: its entry point {known[name].value} is not a subclass of agentrl.Env")
    return found


def make(name: str, settings: Mapping[str, Any] | None = None) -> Env:
    """The environment with its section `[env]` built from settings (flags' text or TOML values)."""
    cls = load(name)
    config = build(cls.Config, settings or {}, where="env")
    with _importing(f"environment {name}", doing="make"):
        env = cls(config)
    point = installed().get(name)
    if point is not None:
        env.name = name
        env.version = point.dist.version if point.dist else env.version
    return env


def _from_file(name: str) -> type[Env]:
    file, _, wanted = name.partition(":")
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"there is no file {path} (from --env {name})")
    module = _import(path)
    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Env) and value.__module__ == module.__name__
    }
    if wanted:
        if wanted not in own:
            raise ConfigError(f"{path} has no environment {wanted!r}.{did_you_mean(wanted, own)}")
        return own[wanted]
    if len(own) != 1:
        raise ConfigError(f"{path} has {len(own)} environments{': ' + ', '.join(own) if own else ''}; name one as {path}:Class")
    return next(iter(own.values()))


def _import(path: Path) -> ModuleType:
    """As a module that a grader's own process can import again: its folder goes on the import path."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.find_spec(path.stem)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != path.resolve():
        raise EnvError(f"{path}: the module name {path.stem!r} is taken by {spec.origin if spec else 'nothing'}; rename the file")
    with _importing(str(path)):
        return importlib.import_module(path.stem)


@contextmanager
def _importing(what: str, *, doing: str = "import") -> Iterator[None]:
    """Whatever user code does at its import, or where it is made, is an EnvError: a script without a main guard may even exit."""
    try:
        with boundary(EnvError, f"{doing} {what}"):
            yield
    except SystemExit as cause:
        raise EnvError(f"{doing} {what}: it called sys.exit({cause.code!r}); put what only a script does under a main guard") from cause
