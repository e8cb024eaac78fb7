"""Sources: a function as a syntax tree with the lines of its file, and the meaning of its names."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from stigmergy.agents.messages import parameters_of

MISSING = object()


@functools.lru_cache(maxsize=1_000)
def source_of(function: Callable[..., Any]) -> Source:
    """A function, read once."""
    return Source(function)


class Source:
    """One function, read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises OSError or SyntaxError where there is no source to read, as in an interactive session."""
        # Of the code itself: a decorator may have put another function around the one that is written there.
        code = function.__code__
        lines, first = inspect.getsourcelines(code)
        # A block of our own around it: its indentation is right whatever its strings contain.
        indented = lines[0][:1].isspace()
        text = ("if True:\n" if indented else "") + "".join(lines)
        statement = ast.parse(text).body[0]
        if indented:
            assert isinstance(statement, ast.If)
            statement = statement.body[0]
        if not isinstance(statement, ast.FunctionDef):
            raise SyntaxError("it is not written with def")
        if statement.name != code.co_name:
            raise OSError("its file has changed since")
        self.function = function
        self.tree = statement
        self.file = inspect.getsourcefile(function) or ""
        self.parameters = parameters_of(function)
        self._first = first - (1 if indented else 0)

    def line_of(self, node: ast.AST) -> int:
        """The line of the file."""
        return int(getattr(node, "lineno", 1)) + self._first - 1

    def lookup(self, name: str) -> Any:
        """What a name stands for that is no local: in an enclosing function, the module, or Python; or MISSING."""
        code = self.function.__code__
        if name in code.co_varnames:
            return MISSING
        for free, cell in zip(code.co_freevars, getattr(self.function, "__closure__", None) or (), strict=True):
            if free == name:
                try:
                    return cell.cell_contents
                except ValueError:
                    return MISSING
        names = self.function.__globals__
        return names[name] if name in names else getattr(builtins, name, MISSING)

    def resolve(self, node: ast.expr) -> Any:
        """What a name, or a path of names through modules and classes, stands for; or MISSING."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            if isinstance(owner, types.ModuleType | type):
                return getattr(owner, node.attr, MISSING)
        return MISSING
