"""Machinery of the configuration. Each package owns its section; `runtime` composes them."""

from agentrl.config.load import build, merge, parse_flags, read_toml
from agentrl.config.section import Section
from agentrl.config.suggest import did_you_mean

__all__ = ["Section", "build", "did_you_mean", "merge", "parse_flags", "read_toml"]
