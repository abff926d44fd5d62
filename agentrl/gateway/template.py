"""A chat template, run as Hugging Face runs it (the same jinja environment, helpers and variables), without a library that loads torch."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentrl.errors import ConfigError, GatewayError

WireMessage = dict[str, Any]
"""A message as templates read it (OpenAI's shape, with arguments as objects)."""


class TemplateRefusal(GatewayError):
    """The template raised on these messages; its own words are the message."""


class Template:
    """A compiled chat template with the tokenizer's special tokens and the run's keyword arguments."""

    def __init__(self, source: str, *, tokens: Mapping[str, Any] | None = None, kwargs: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self._variables = {**(tokens or {}), **(kwargs or {})}
        try:
            self._compiled = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as cause:
            raise ConfigError(f"the model's chat template does not parse: line {cause.lineno}: {cause.message}") from cause

    @classmethod
    def from_folder(cls, folder: Path, *, kwargs: Mapping[str, Any] | None = None) -> "Template":
        """Reads chat_template.jinja, or tokenizer_config.json. Raises ConfigError if neither has a template."""
        path = folder / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        beside = folder / "chat_template.jinja"
        source = beside.read_text(encoding="utf-8") if beside.exists() else config.get("chat_template")
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("tool_use") or named.get("default")
        if not isinstance(source, str) or not source:
            raise ConfigError(f"{folder} has no chat template; agentrl needs a model made for chat (an instruct model)")
        tokens = {key: _text(value) for key, value in config.items() if key.endswith("_token") and _text(value) is not None}
        return cls(source, tokens=tokens, kwargs=kwargs)

    def render(self, messages: Sequence[WireMessage], *, tools: Sequence[dict[str, Any]] | None = None, generate: bool = True) -> str:
        """The conversation as text, followed by what opens the assistant's turn if `generate`. Raises TemplateRefusal."""
        try:
            return self._compiled.render(messages=messages, tools=tools or None, add_generation_prompt=generate, **self._variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as cause:
            raise TemplateRefusal(f"the model's chat template refuses these messages: {cause}") from cause


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for other tools; here it is transparent."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for what templates do most: `message.role`, where the message is a plain dict."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
