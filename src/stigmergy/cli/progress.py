"""Shows how far a long job has come: one line on stderr, on a terminal only, never with --json, and gone at the end.

    with Progress(output, "verifying", "commits") as progress:
        for done in verification.run_slowly():
            progress.show(done, verification.commits_expected)

A job that is quick shows nothing. The caller may tell its progress as often as it likes; the line is written at most
ten times a second.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from stigmergy.cli.output import Output

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
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
