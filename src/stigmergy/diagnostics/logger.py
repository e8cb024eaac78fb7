"""How code says something in the log: `Log("views").say("view-failed", sentence)`. It never waits.

Messages go through `logging` of Python, to the logger `stigmergy.NAME`, so a program that embeds a fleet sees them as
it sees all others; `record.about` has the code. The commands of the command line write them as `handler` says.
"""

from __future__ import annotations

import logging
import traceback
from contextvars import ContextVar
from typing import Any

from msgspec import Struct

from stigmergy.diagnostics.codes import CODES, DEBUG, ERROR, INFO, WARN

NUMBERS = {DEBUG: logging.DEBUG, INFO: logging.INFO, WARN: logging.WARNING, ERROR: logging.ERROR}
SHARD: ContextVar[int | None] = ContextVar("shard", default=None)
"""The shard that the present task works for."""


def be_quiet() -> None:
    """Without a handler Python would write warnings to stderr; a simulation says what it found itself."""
    logging.getLogger("stigmergy").addHandler(logging.NullHandler())


class LogSubject(Struct, frozen=True):
    """What a message is about; what is not known is empty."""

    code: str
    agent: str = ""
    shard: int | None = None
    trace: str = ""
    over: bool | None = None
    """Of a trouble: whether it is over now."""
    on_stdout: bool = False
    """People have it on stdout already: text leaves it out."""
    is_trouble: bool = False
    """It is among the troubles of its node, too: whoever watches those leaves this message out."""
    fields: dict[str, Any] = {}


class Log:
    """Says something under the name of a part of the program."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"stigmergy.{name}")

    def say(
        self,
        code: str,
        text: str,
        *,
        agent: str = "",
        shard: int | None = None,
        trace: str = "",
        over: bool | None = None,
        error: BaseException | None = None,
        on_stdout: bool = False,
        is_trouble: bool = False,
        fields: dict[str, Any] | None = None,
    ) -> None:
        """Writes one message. `code` is one of `codes.CODES`, and says its level; a trouble that is over is info."""
        level = NUMBERS[INFO if over else CODES[code].level if code in CODES else ERROR]
        if self._logger.isEnabledFor(level):
            shard = SHARD.get() if shard is None else shard
            about = LogSubject(code, agent, shard, trace, over, on_stdout, is_trouble, fields or {})
            raised = None if error is None else (type(error), error, error.__traceback__)
            name, extra = self._logger.name, {"about": about}
            record = self._logger.makeRecord(name, level, __file__, 0, "%s", (text,), raised, extra=extra)
            if error is not None:
                record.exc_text = traceback_of(error)
            self._logger.handle(record)


def traceback_of(error: BaseException) -> str:
    """A traceback that every handler can write, whatever bytes an error repeats."""
    return "".join(traceback.format_exception(error)).rstrip().encode(errors="backslashreplace").decode()
