"""What a running node says about its troubles: a line when one begins, when it ends, and not too many of them. Pure.

`compare` gets all troubles of a node again and again and returns what has changed. Many texts have a count or a time in
them: a text that differs from an earlier one only in its digits is the same trouble, and is repeated once a minute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from stigmergy.control.live import Live
from stigmergy.network.bus_link import LOCAL_ONLY

REPEATED_S = 60.0
"""A trouble whose text has changed is told again after this long."""
LINES_MAX = 20
"""Changes that are told in one minute; the rest is counted, and the count is told in the next one."""
LINK_PATIENCE_S = 3.0
"""A link that is down for less is no trouble: every start begins so."""
_DIGITS = re.compile(r"\d[\d.,:TZ-]*")
_LINK = f"link {LOCAL_ONLY}"


class TroubleChange(Struct, frozen=True):
    """A trouble that has begun, goes on with another text (`is_over` is False), or is over."""

    text: str
    is_over: bool = False


class _Told(Struct):
    text: str
    """As it was told."""
    at_s: float


class TroubleReport:
    """Remembers what was told."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        """By the text at the last look."""
        self._minute_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def compare(self, troubles: Sequence[str], now_s: float) -> list[TroubleChange]:
        """What is to be told now."""
        changes: list[TroubleChange] = []
        gone = {text: told for text, told in self._told.items() if text not in troubles}
        told = {text: told for text, told in self._told.items() if text in troubles}
        for text in dict.fromkeys(troubles):
            if text in told:
                continue
            same = next((other for other in gone if _form(other) == _form(text)), None)
            if same is None:
                told[text] = _Told(text, now_s)
                changes.append(TroubleChange(text))
            else:
                told[text] = gone.pop(same)
        changes += [TroubleChange(text, is_over=True) for text in gone]
        for text, one in told.items():
            if one.text != text and now_s - one.at_s >= REPEATED_S:
                one.text, one.at_s = text, now_s
                changes.append(TroubleChange(text))
        self._told = told
        return changes

    def admit(self, now_s: float) -> bool:
        """Whether one more line may be told in this minute."""
        if now_s - self._minute_s >= REPEATED_S:
            self._minute_s, self._lines = now_s, 0
        self._lines += 1
        self._left_out += self._lines > LINES_MAX
        return self._lines <= LINES_MAX

    def take_left_out(self, now_s: float) -> int:
        """How many lines were left out in the minute that is over, once."""
        if not self._left_out or now_s - self._minute_s < REPEATED_S:
            return 0
        left_out, self._left_out = self._left_out, 0
        return left_out


class LinkWatch:
    """The link to the bus as a trouble, once it has been down for some time."""

    def __init__(self) -> None:
        self._down_s: float | None = None

    def troubles(self, live: Live, now_s: float) -> list[str]:
        """What `stigmergy status` shows of the link, if it is down."""
        link = None if live.link is None else live.link.standing()
        if link is None or link.link != LOCAL_ONLY:
            self._down_s = None
            return []
        if self._down_s is None:
            self._down_s = now_s
        if now_s - self._down_s < LINK_PATIENCE_S:
            return []
        return [f"{_LINK}: {link.why or 'it is not connected yet'}"]


def troubles_of(live: Live) -> list[str]:
    """The troubles and the stopped agents that `stigmergy status` shows."""
    return [*live.troubles(), *(f"{agent} is stopped: {why}" for agent, why in live.stopped().items())]


def _form(text: str) -> str:
    """What two texts of the same trouble have in common: of the link any reason."""
    return _LINK if text.startswith(_LINK) else _DIGITS.sub("#", text)
