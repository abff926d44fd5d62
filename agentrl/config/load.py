"""From TOML files and dotted flags to frozen sections. The flags' names are the TOML's keys: `--train.lr 1e-6` is `[train] lr = 1e-6`."""

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentrl.config.section import Section
from agentrl.config.suggest import did_you_mean
from agentrl.errors import ConfigError

S = TypeVar("S", bound=Section)
Tree = dict[str, Any]


def read_toml(path: Path) -> Tree:
    """Raises ConfigError with the line of a syntax error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise ConfigError(f"cannot read {path}: {cause.strerror}") from cause
    except tomllib.TOMLDecodeError as cause:
        raise ConfigError(f"{path} is not valid TOML: {cause}") from cause
    except UnicodeDecodeError as cause:
        raise ConfigError(f"{path} is not valid TOML: it is not UTF-8 text ({cause.reason} at byte {cause.start})") from cause


def parse_flags(words: Sequence[str], aliases: Mapping[str, str] | None = None) -> Tree:
    """`--a.b 1 --a.c=x --a.d` to {"a": {"b": "1", "c": "x", "d": "true"}}. Values stay text: only their section knows the types.

    `aliases` maps a short option to its key, such as model → model.name.
    """
    tree: Tree = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"unexpected word {word!r}: options look like --section.key value")
        key, equals, value = word[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        key = key.replace("-", "_")
        _put(tree, (aliases or {}).get(key, key).split("."), value)
    return tree


def _put(tree: Tree, path: list[str], value: Any) -> None:
    at = tree
    for key in path[:-1]:
        inner = at.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--{'.'.join(path)}: {key!r} was given as a value before")
        at = inner
    at[path[-1]] = value


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """`above` wins key by key."""
    out: Tree = dict(below)
    for key, value in above.items():
        inner = out.get(key)
        out[key] = merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return out


def build(cls: type[S], tree: Mapping[str, Any], *, where: str = "") -> S:
    """The section, with every nested one built and checked. Raises ConfigError naming the dotted key and the right spelling."""
    hints = typing.get_type_hints(cls)
    values: Tree = {}
    for key, value in tree.items():
        dotted = f"{where}.{key}" if where else key
        if key not in cls.__struct_fields__:
            raise ConfigError(f"unknown option '{dotted}'.{did_you_mean(key, cls.__struct_fields__)}")
        kind = hints[key]
        if isinstance(kind, type) and issubclass(kind, Section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"'{dotted}' is a section with keys {', '.join(kind.__struct_fields__)}; it cannot be {value!r}")
            values[key] = build(kind, value, where=dotted)
            continue
        try:
            values[key] = msgspec.convert(_from_text(value, kind), kind, strict=False)
        except msgspec.ValidationError as cause:
            choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
            what = f".{did_you_mean(str(value), map(str, choices))}" if choices else f": {cause}"
            raise ConfigError(f"'{dotted}' cannot be {value!r}{what}") from cause
    try:
        section = cls(**values)
    except TypeError as cause:
        raise ConfigError(f"section '{where or cls.__name__}': {cause}") from cause
    section.check()
    return section


def _from_text(value: Any, kind: Any) -> Any:
    """A flag's text for a list or tuple field: JSON if it looks like it, else comma-separated."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    collections = any(typing.get_origin(option) in (list, tuple, dict, set) for option in options)
    if isinstance(value, str) and collections:
        if value[:1] in "[{":
            try:
                return msgspec.json.decode(value)
            except msgspec.DecodeError as cause:
                raise ConfigError(f"{value!r} is not valid JSON: {cause}") from cause
        return [item.strip() for item in value.split(",") if item.strip()]
    return value
