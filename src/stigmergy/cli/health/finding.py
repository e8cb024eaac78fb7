"""What a check found: whether it is well, in one sentence, and what to do if it is not."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

OK = "ok"
WARN = "warn"
FAIL = "fail"
LEVELS = (OK, WARN, FAIL)


class Finding(Struct, frozen=True):
    """One check. `remedy` is empty where there is nothing to do."""

    check: str
    level: str
    what: str
    remedy: str = ""
    facts: dict[str, Any] = {}


def well(check: str, what: str, **facts: Any) -> Finding:
    """All is well."""
    return Finding(check, OK, what, "", facts)


def worry(check: str, what: str, remedy: str, **facts: Any) -> Finding:
    """It works, but somebody should know."""
    return Finding(check, WARN, what, remedy, facts)


def ill(check: str, what: str, remedy: str, **facts: Any) -> Finding:
    """It does not work, or not safely."""
    return Finding(check, FAIL, what, remedy, facts)
