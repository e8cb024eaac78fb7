"""The parser of the command line: an error is an error like any other, one sentence, and JSON if that is asked for."""

from __future__ import annotations

import argparse
from typing import NoReturn

from stigmergy.core.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Like its base, but it raises instead of printing its usage and ending the program."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")
