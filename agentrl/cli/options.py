"""What the reading commands share: a parser whose errors are ConfigErrors, like every other refusal."""

import argparse
from typing import Any, NoReturn

from agentrl.errors import ConfigError


class Options(argparse.ArgumentParser):
    """`Options("agentrl show", "show one episode")`."""

    def __init__(self, prog: str, description: str, **kwargs: Any) -> None:
        super().__init__(prog, description=description, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message} (`{self.prog} --help`)")
