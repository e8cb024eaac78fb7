"""What commands print: results on stdout, messages on stderr; for people with few colours, for programs as JSON.

With --json stdout has one JSON document, or one a line for what is a stream, and nothing else. Text that came from
outside is never printed raw: control characters would move the terminal's cursor, and marks of direction would show
one text as another. In JSON such characters are escaped, so that a reader gets them as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Cell = str | tuple[str, str]
"""A text, or a text and its style."""

HEADING = "dim"
NAME = "cyan"
GOOD = "green"
BAD = "red"
WARN = "yellow"


class Output:
    """Where one run of the program prints."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json

    @cached_property
    def console(self) -> Console:
        """The console for results, on stdout, for those that draw themselves."""
        return _make_console(stderr=False)

    @cached_property
    def messages(self) -> Console:
        """The console for what is no result, on stderr."""
        return _make_console(stderr=True)

    def document(self, value: Any) -> None:
        """The result as one line of JSON; does nothing for people."""
        if self.json:
            sys.stdout.flush()
            sys.stdout.buffer.write(json_line(value))
            sys.stdout.buffer.flush()

    def line(self, *cells: Cell) -> None:
        """One line for people; does nothing with --json."""
        if not self.json:
            self.console.print(_text(cells))

    def table(self, heading: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Aligned columns; the last one may be as long as it likes."""
        lines = [[(name, HEADING) for name in heading] if heading else [], *rows]
        lines = [line for line in lines if line]
        widths = [
            max((len(_plain(line[n])) for line in lines if n < len(line)), default=0) for n in range(_span(lines))
        ]
        for line in lines:
            cells: list[Cell] = []
            for number, cell in enumerate(line):
                last = number == len(line) - 1
                padding = "" if last else " " * (widths[number] - len(_plain(cell)) + 2)
                cells += [cell, padding]
            self.line(*cells)

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Names and values, one pair a line, aligned."""
        self.table((), [(("  " + name, HEADING), value) for name, value in pairs])

    def note(self, text: str, style: str = "") -> None:
        """A message beside the result, for people; with --json it is left out."""
        if not self.json:
            sys.stdout.flush()
            self.messages.print(_text([(text, style)]))

    def error(self, text: str, kind: str) -> None:
        """Why the command did not do what was asked."""
        if self.json:
            self.document({"error": text, "kind": kind})
            return
        sys.stdout.flush()
        self.messages.print(_text([("error: ", BAD), text]))


def shown(value: Any) -> str:
    """A value of a field, short and without quotes where it cannot be mistaken."""
    if isinstance(value, str) and value and value.isprintable() and value == value.strip() and '"' not in value:
        return value
    return msgspec.json.encode(value).decode()


def shown_fields(fields: Any) -> str:
    """Fields of a message in one line: mission=M1 percent=12.5."""
    if not isinstance(fields, dict):
        return shown(fields)
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def shown_bytes(count: int) -> str:
    """A size for people."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def counted(count: int, thing: str, things: str = "") -> str:
    """A number of things: 1 agent, 1,203 agents; 2 entries, where the plural is given."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {things or thing + 's'}"


def json_line(value: Any) -> bytes:
    """One line of JSON in which every character can be printed."""
    return printable_json(msgspec.json.encode(value)) + b"\n"


def printable_json(data: bytes) -> bytes:
    """The same JSON with every character escaped that cannot be printed: they stand in strings only."""
    text = data.decode()
    if text.isprintable():
        return data
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text).encode()


def _escaped(sign: str) -> str:
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def printable(text: str) -> str:
    """The text without anything that a terminal would obey."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _make_console(*, stderr: bool) -> Console:
    """A console that prints what it is given as it is; imported here because --json needs none."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            # The base would end the program with 1; that somebody has read enough is no failure.
            raise BrokenPipeError

    return Plain(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _quoted(value: Any) -> str:
    text = shown(value)
    return msgspec.json.encode(value).decode() if isinstance(value, str) and " " in text else text


def _plain(cell: Cell) -> str:
    return printable(cell if isinstance(cell, str) else cell[0])


def _span(lines: Sequence[Sequence[Cell]]) -> int:
    return max((len(line) for line in lines), default=0)


def _text(cells: Iterable[Cell]) -> Text:
    from rich.text import Text

    text = Text()
    for cell in cells:
        text.append(_plain(cell), style="" if isinstance(cell, str) else cell[1])
    return text
