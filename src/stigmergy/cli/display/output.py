"""What commands print: results on stdout, messages on stderr; for people with few colours, for programs as JSON.

With --json stdout has one JSON document, or one per line for a stream, and nothing else. Text from outside is never
printed raw: control characters would move the terminal's cursor, and direction marks would show one text as another. In
JSON such characters are escaped, so a reader gets them unchanged.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from stigmergy.base.errors import ConfigError
from stigmergy.diagnostics.handler import ProcessLog
from stigmergy.diagnostics.logger import Log

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.text import Text


_LOG = Log("cli")
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
        self.log: ProcessLog | None = None
        """Of a command that runs until it is stopped."""

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
        for line in aligned(heading, rows):
            self.line(*line)

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Names and values, one pair a line, aligned."""
        self.table((), [(("  " + name, HEADING), value) for name, value in pairs])

    def tell(self, code: str, *cells: Cell, document: dict[str, Any] | None = None) -> None:
        """Something that happens to a running process: a document with --json, a line on stdout for people, and a
        message in the log."""
        if document is not None:
            self.document(document)
        self.line(*cells)
        fields = {name: value for name, value in (document or {}).items() if name not in ("event", "fleet", "shard")}
        text, shard = "".join(map(_plain, cells)), (document or {}).get("shard")
        _LOG.say(code, text, shard=shard, on_stdout=True, fields=fields)

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
        if self.log is not None and self.log.is_json:
            return  # its last line says so
        sys.stdout.flush()
        self.messages.print(_text([("error: ", BAD), text]))


def aligned(heading: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[Sequence[Cell]]:
    """A table as lines: columns as wide as they need, the last cell of a line as long as it likes."""
    lines: list[Sequence[Cell]] = [line for line in ([(name, HEADING) for name in heading], *rows) if line]
    span = max((len(line) for line in lines), default=0)
    widths = [max(len(_plain(line[n])) for line in lines if n < len(line)) for n in range(span)]
    found: list[Sequence[Cell]] = []
    for line in lines:
        padded = ((cell, " " * (width - len(_plain(cell)) + 2)) for cell, width in zip(line, widths, strict=False))
        found.append([part for pair in padded for part in pair][:-1])
    return found


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


def _text(cells: Iterable[Cell]) -> Text:
    from rich.text import Text

    text = Text()
    for cell in cells:
        text.append(_plain(cell), style="" if isinstance(cell, str) else cell[1])
    return text


def screen_text(lines: Iterable[Iterable[Cell]]) -> Text:
    """Lines that already fit the screen, as they are drawn on it."""
    from rich.text import Text

    cells = [cell for line in lines for cell in ("\n", *line)][1:]
    return Text(no_wrap=True, overflow="crop", end="").append_tokens(
        (cell, None) if isinstance(cell, str) else cell for cell in cells
    )


# The parser of the command line: its errors look like all others, one sentence, and JSON if requested.


class Parser(argparse.ArgumentParser):
    """Like its base, but it raises instead of printing its usage and ending the program. An epilog keeps its lines.
    `run` is what a command does; every one takes --json, --debug and --identity, which `main` reads."""

    def __init__(self, *arguments: Any, run: Callable[[argparse.Namespace, Output], int] | None = None, **options: Any):
        if options.get("epilog"):
            options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)
        self._again = False
        absent = argparse.SUPPRESS
        self.add_argument("--json", action="store_true", default=absent, help="JSON on stdout, and only that")
        self.add_argument("--debug", action="store_true", default=absent, help="show tracebacks")
        self.add_argument(
            "--identity",
            metavar="DIR",
            default=absent,
            help="the certificate that links with TLS show; see stigmergy ca",
        )
        if run is not None:
            self.set_defaults(run=run)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what it does not know itself: else only the outermost parser would, and name its own help."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and namespace is None and not self._again:
            self._again = True  # what is called here calls this method
            try:  # argparse alone gives up an optional word at the first option before it
                parsed, unknown = self.parse_known_intermixed_args(args)
            except TypeError:  # a parser with commands below it
                pass
            finally:
                self._again = False
        if unknown and not self._again:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


# The version of the installed package.


def version() -> str:
    """The version of the installed package."""
    try:
        return installed_version("stigmergy")
    except PackageNotFoundError:
        return "unknown"


# Shows the progress of a long job: one line on stderr, on a terminal only, never with --json, and removed at the end.
#
#     with Progress(output, "verifying", "commits") as progress:
#         for done in verification.run_slowly():
#             progress.show(done, verification.commits_expected)
#
# A quick job shows nothing. Report progress as often as you like; the line is written at most ten times a second.

QUIET_S = 0.5
"""A job that takes no longer than this shows nothing."""
EVERY_S = 0.1


class Progress:
    """One job's line."""

    def __init__(self, output: Output, what: str, unit: str, *, quiet_s: float = QUIET_S) -> None:
        self._output = output
        self._what = what
        self._unit = unit
        self._shown = not output.json and sys.stderr.isatty() and not output.messages.is_dumb_terminal
        self._next_s = time.monotonic() + quiet_s
        self._line: tuple[Bar, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line[0].stop()
            self._line = None

    def show(self, done: int, total: int | None = None) -> None:
        """So much is done, of so much, if that is known."""
        if not self._shown or time.monotonic() < self._next_s:
            return
        if self._line is None:
            self._line = self._begin()
        bar, task = self._line
        bar.update(task, completed=done, total=total, refresh=True)
        self._next_s = time.monotonic() + EVERY_S

    def _begin(self) -> tuple[Bar, TaskID]:
        """The first writing; imported here because most commands are quick, and --json needs none of it."""
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        unit = self._unit

        class Count(ProgressColumn):
            def render(self, task: Task) -> Text:
                of = "" if task.total is None else f" of {task.total:,.0f}"
                return Text(f"{task.completed:,.0f}{of} {unit}", no_wrap=True)

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), Count(), TimeRemainingColumn())
        bar = Bar(*columns, console=self._output.messages, auto_refresh=False, transient=True)
        bar.start()
        return bar, bar.add_task(self._what, total=None)
