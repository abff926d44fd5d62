"""A section of the configuration: a frozen struct that its package owns.

`kw_only` and `forbid_unknown_fields` make "misspelt" an error instead of a default. A section refuses nonsense in `check`, with the fix in
the message; values are derived (`msgspec.structs.replace`), never mutated.
"""

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """Base of every section. A docstring under a field is its documentation in docs/configuration.md."""

    def check(self) -> None:
        """Raise ConfigError for values that no type can refuse. Called once, after the whole configuration is built."""
