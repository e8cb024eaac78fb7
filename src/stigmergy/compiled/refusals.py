"""What keeps an agent class from being compiled: findings with place, reason and remedy, collected and told at once."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import PurePath
from typing import Any

from stigmergy.core.errors import DefinitionError

SHOWN_CHARS_MAX = 80


class Findings:
    """Collects findings about one class; each is told once, in the order of the file."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], str] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, file: str, line: int, where: str, says: str) -> None:
        """One finding. `line` 0 is for what has no line."""
        name = PurePath(file).name
        place = f"{name} line {line}: " if line else f"{name}: " if name else ""
        self._found.setdefault((file, line, f"{where}: {says}"), f"{place}{where}: {says}")

    def add_of(self, cls: type[Any], where: str, says: str, field: str = "") -> None:
        """One finding about a class, or about a field of it. To find its line takes long, so only this looks for it."""
        file, line = file_and_line_of_field(cls, field) if field else file_and_line(cls)
        self.add(file, line, where, says)

    def raise_any(self) -> None:
        """Raises DefinitionError with all findings, if there are any."""
        if self._found:
            raise DefinitionError("\n".join(text for _, text in sorted(self._found.items())))


def file_and_line(cls: type[Any]) -> tuple[str, int]:
    """Where a class is defined, as far as its source can be found."""
    try:
        return inspect.getsourcefile(cls) or "", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "", 0


def file_and_line_of_field(cls: type[Any], name: str) -> tuple[str, int]:
    """Where a field is declared, by the class or the base that it comes from."""
    owner = next((base for base in cls.__mro__ if name in vars(base).get("__annotations__", {})), cls)
    file, line = file_and_line(owner)
    if not line:
        return file, line
    lines = inspect.getsourcelines(owner)[0]
    for number, text in enumerate(lines):
        if re.match(rf"\s+{re.escape(name)}\s*:", text):
            return file, line + number
    return file, line


def shown(node: ast.AST) -> str:
    """A piece of source in one line, for messages and comments."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"
