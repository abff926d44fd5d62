"""Writes docs/configuration.md from the sections themselves: their types, their defaults and the docstrings under their fields.

A page written by hand would be wrong a week later. The tests compare it with what this module makes of the sections as they are.
Run it with `.venv/bin/python docs/generate_configuration.py`.
"""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import Section
from agentrl.env import Bounds, EnvConfig, Limits, load
from agentrl.runtime.config import TINY, RunConfig

PAGE = Path(__file__).with_name("configuration.md")
BUNDLED = ("countdown", "reasoning_gym")
"""Environments of this repository; others document their own settings."""
HEAD = """\
# Configuration

<!-- Made by docs/generate_configuration.py from the sections' own docstrings; change those, then run it. -->

One configuration, three ways to write it; what stands higher wins:

1. flags: `--train.lr 1e-6`
2. a TOML file: `agentrl train --config run.toml`, with `[train]` and `lr = 1e-6`
3. the defaults below; "tiny:" marks the default of `--model tiny`

`--env NAME` is short for `--env.name NAME`, and `--model NAME` for `--model.name NAME`. A flag without a value is `true`; a list is
comma-separated or JSON; `-` and `_` are the same in a flag. `--dry-run` prints the resolved configuration as TOML. A key that does
not exist, a value of the wrong type and a combination that cannot work are refused before anything starts, with the fix in the message.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Of the run", table(RunConfig, "", TINY)]
    for name, kind in sections():
        parts.append(f"## [{name}]")
        parts += about(kind)
        parts.append(table(kind, f"{name}.", TINY.get(name, {})))
        if name == "env":
            parts += environments()
    return "\n\n".join(part.strip() for part in parts) + "\n"


def sections() -> Iterator[tuple[str, type[Section]]]:
    """By key, in the order of `RunConfig`. `[env]` is whatever the environment says, above its base."""
    hints = typing.get_type_hints(RunConfig)
    for name in RunConfig.__struct_fields__:
        if name == "env":
            yield name, EnvConfig
        elif _is_section(hints[name]):
            yield name, hints[name]


def environments() -> Iterator[str]:
    """What the bundled environments add to `[env]`."""
    for name in BUNDLED:
        config = load(name).Config
        own = [field for field in config.__struct_fields__ if field not in EnvConfig.__struct_fields__]
        yield f"### [env] of {name}"
        yield table(config, "env.", {}, own)


def about(section: type[Section]) -> Iterator[str]:
    """A section's docstring, without what only its readers in code want to know."""
    if section is EnvConfig:
        yield "What every environment has; each adds [its own](write-an-env.md#settings). Limits are [inherited](write-an-env.md#limits)."
    else:
        yield inspect.cleandoc(section.__doc__ or "")


def table(section: type[Section], prefix: str, tiny: Mapping[str, Any], only: list[str] | None = None) -> str:
    """One row a key; sections inside are listed with their own keys, except those that have a heading of their own."""
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows(section, prefix, tiny, only)])


def rows(section: type[Section], prefix: str, tiny: Mapping[str, Any], only: list[str] | None = None) -> Iterator[str]:
    hints, told = typing.get_type_hints(section), docstrings(section)
    for field in msgspec.structs.fields(section):
        kind = hints[field.name]
        if (only is not None and field.name not in only) or (section is RunConfig and (field.name == "env" or _is_section(kind))):
            continue
        if _is_section(kind):
            yield from rows(kind, f"{prefix}{field.name}.", {})
            continue
        default = written(field.default if field.default is not msgspec.NODEFAULT else field.default_factory())
        if section is Limits:
            default = f"inherited; at last {written(getattr(Bounds(), field.name))}"
        if field.name in tiny:
            default += f"; tiny: {written(tiny[field.name])}"
        yield f"| `{prefix}{field.name}` | {type_name(kind)} | {default} | {told[field.name]} |"


def docstrings(section: type[Section]) -> dict[str, str]:
    """By field, in one line each; those of the bases too. A field without one is refused."""
    told: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if not (issubclass(cls, Section) and cls is not Section):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for above, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                told[above.target.id] = " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
    hints = typing.get_type_hints(section)
    lacking = [name for name in section.__struct_fields__ if name not in told and not _is_section(hints[name])]
    if lacking:
        raise SystemExit(f"{section.__name__}: write a docstring under {', '.join(lacking)}; it is their documentation")
    return told


def type_name(kind: Any) -> str:
    """As a person writes it in TOML."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(f"`{option}`" for option in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(option) for option in arguments if option is not type(None))
    if origin is tuple:
        return " and ".join(type_name(option) for option in arguments)
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "table"}
    return names.get(origin or kind) or str(kind)


def written(value: Any) -> str:
    """A default, as in TOML."""
    if value is None:
        return "unset"
    if isinstance(value, str) and not value:
        return "empty"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value if isinstance(value, str) else msgspec.json.encode(value).decode()}`"


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
