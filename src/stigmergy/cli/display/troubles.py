"""What a running node says about its troubles: a line when one begins, when it ends, and not too many of them. Pure.

`compare` gets all troubles of a node again and again and returns what has changed. Many texts have a count or a time in
them: a text that differs from an earlier one only in its digits is the same trouble, and is repeated once a minute.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from stigmergy.bus.port import LOCAL_ONLY
from stigmergy.cli.display.output import Output, counted
from stigmergy.control.live import Live
from stigmergy.diagnostics.codes import Trouble
from stigmergy.diagnostics.logger import Log
from stigmergy.node.effector import SentSafeAction
from stigmergy.shard.homes import Homes

REPEATED_S = 60.0
"""A trouble whose text has changed is told again after this long."""
LINES_MAX = 20
"""Changes that are told in one minute; the rest is counted, and the count is told in the next one."""
LOG = Log("troubles")
_DIGITS = re.compile(r"\d[\d.,:TZ-]*")
_LINK = f"link {LOCAL_ONLY}"


class TroubleChange(Struct, frozen=True):
    """A trouble that has begun, goes on with another text (`is_over` is False), or is over."""

    text: Trouble
    is_over: bool = False


class _Told(Struct):
    text: Trouble
    """As it was told."""
    at_s: float


class TroubleReport:
    """Remembers what was told."""

    def __init__(self) -> None:
        self._told: dict[Trouble, _Told] = {}
        """By the text at the last look."""
        self._minute_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def compare(self, troubles: Sequence[Trouble], now_s: float) -> list[TroubleChange]:
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


class TroubleWatch:
    """Tells of the shards of a process what `stigmergy status` shows, its troubles and stopped agents, and each safe
    action: in the log, and to programs in documents."""

    def __init__(self, output: Output, fleet: str) -> None:
        self._output = output
        self._fleet = fleet
        self._report = TroubleReport()
        self._sent: dict[int, tuple[Homes, deque[SentSafeAction]]] = {}
        """By shard, of the last look: a host that has failed makes its agents safe, and is gone at the next one."""

    def look(self, lives: Mapping[int, Live], now_s: float) -> None:
        """Tells what has changed, and the safe actions that went out; at most LINES_MAX in a minute."""
        self._tell_troubles(lives, now_s)
        self.tell_safe_actions(lives, now_s)

    def _tell_troubles(self, lives: Mapping[int, Live], now_s: float) -> None:
        found: list[Trouble] = []
        for live in lives.values():
            found += live.troubles()
            for agent, why in live.stopped().items():
                text, home = f"{agent} is stopped: {why}", live.host.declaration.homes.of(agent)
                found.append(Trouble("agent-stopped", text, agent, home))
        changes: list[TroubleChange] = []
        if left_out := self._report.take_left_out(now_s):
            what = f"{counted(left_out, 'line')} left out in the last minute; see stigmergy status and the log"
            changes.append(TroubleChange(Trouble("left-out", what)))
        changes += [one for one in self._report.compare(found, now_s) if self._report.admit(now_s)]
        for one in changes:
            told = one.text
            text = told.past if one.is_over else told
            LOG.say(told.code, text, agent=told.agent, shard=told.shard, over=one.is_over)
            event = "resolved" if one.is_over else "troubled"
            self._output.document({"event": event, "reason": str(told), "fleet": self._fleet})

    def tell_safe_actions(self, lives: Mapping[int, Live], now_s: float) -> None:
        """Tells the safe actions that went out since the last look."""
        now = {number: (live.host.declaration.homes, live.host.safety.sent) for number, live in lives.items()}
        for homes, sent in [*self._sent.values(), *now.values()]:
            while sent:
                one = sent.popleft()
                if not self._report.admit(now_s):
                    continue
                self._output.document({"event": "safe action", **structs.asdict(one), "fleet": self._fleet})
                because = f": {one.because}" if one.because else ""
                text = f"safe action {one.action} of {one.agent}{because}"
                LOG.say("safe-action", text, agent=one.agent, shard=homes.of(one.agent))
        self._sent = now


def _form(text: str) -> str:
    """What two texts of the same trouble have in common: of the link any reason."""
    return _LINK if text.startswith(_LINK) else _DIGITS.sub("#", text)
