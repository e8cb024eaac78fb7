"""The log of a command that runs until it is stopped: its options, and the secrets that must not be in it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import structs

from stigmergy.app.config import Config
from stigmergy.diagnostics.handler import ProcessLog
from stigmergy.diagnostics.lines import passwords_in

FORMATS = ("auto", "text", "json")
_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL", re.IGNORECASE)
"""Of variables of the environment, such as AWS_SECRET_ACCESS_KEY."""
_SECRET_VARIABLE_CHARS_MIN = 8


def add_log(parser: argparse.ArgumentParser) -> None:
    """The option of everything that runs until it is stopped."""
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        help="lines on stderr as text or JSON; else text on a terminal, JSON elsewhere",
    )


def log_of(arguments: argparse.Namespace, config: Config, fleet: str, role: str, node: str = "") -> ProcessLog:
    """What the command line says, else `[log]` in stigmergy.toml."""
    chosen = structs.replace(config.log, format=arguments.log_format or config.log.format)
    given = [*_texts(vars(arguments)), *_texts(msgspec.to_builtins(config))]
    secrets = [password for text in given for password in passwords_in(text)]
    headers = {} if config.settings is None else config.settings.traces.headers
    secrets += [word for value in headers.values() for word in (value, value.rpartition(" ")[2])]
    secrets += [
        value
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _SECRET_VARIABLE_CHARS_MIN
    ]
    return ProcessLog(chosen, fleet=fleet, node=node, role=role, secrets=secrets)


def _texts(value: Any) -> Iterator[str]:
    """All texts within."""
    match value:
        case str():
            yield value
        case dict():
            for one in value.values():
                yield from _texts(one)
        case list() | tuple():
            for one in value:
                yield from _texts(one)
        case _:
            pass
