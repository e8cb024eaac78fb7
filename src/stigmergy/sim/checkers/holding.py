"""One holder per claim: no two believe at the same moment that the same thing is theirs, and tokens only grow."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Hold(Struct, frozen=True):
    """That somebody believed to hold something, from one moment to another, in one time for all: the simulator's."""

    resource: str
    holder: str
    token: int
    from_ns: int
    until_ns: int
    """Not included. Of a holder that died it is the moment of its death."""


def one_holder_at_a_time(holds: Iterable[Hold]) -> list[str]:
    """Holds of different holders must not overlap, and who holds later must have a higher token."""
    findings: list[str] = []
    by_resource: dict[str, list[Hold]] = {}
    for hold in holds:
        if hold.until_ns > hold.from_ns:
            by_resource.setdefault(hold.resource, []).append(hold)
    for resource in sorted(by_resource):
        ordered = sorted(by_resource[resource], key=lambda hold: (hold.from_ns, hold.token, hold.holder))
        longest = ordered[0]
        for hold in ordered[1:]:
            if hold.holder != longest.holder:
                if hold.from_ns < longest.until_ns:
                    findings.append(
                        f"{resource}: {longest.holder} (token {longest.token}) held it until {_s(longest.until_ns)}, "
                        f"{hold.holder} (token {hold.token}) from {_s(hold.from_ns)}"
                    )
                elif hold.token <= longest.token:
                    findings.append(
                        f"{resource}: {hold.holder} holds it with token {hold.token}, after {longest.holder} had "
                        f"{longest.token}"
                    )
            if hold.until_ns >= longest.until_ns:
                longest = hold
    return findings


class Holding:
    """Makes holds of what is seen from moment to moment: `seen` for everybody who believes to hold, then `looked`."""

    def __init__(self) -> None:
        self.holds: list[Hold] = []
        self._open: dict[tuple[str, str, int], int] = {}
        """Since when somebody is seen to hold something."""
        self._last: dict[tuple[str, str, int], int] = {}
        self._now: dict[tuple[str, str, int], None] = {}

    def seen(self, resource: str, holder: str, token: int) -> None:
        """At this moment somebody believes to hold something."""
        self._now[resource, holder, token] = None

    def looked(self, time_ns: int) -> None:
        """Everybody was asked. Who is not seen any more has held until the look before; never longer than is known."""
        for key in [key for key in self._open if key not in self._now]:
            resource, holder, token = key
            # At least for the moment itself: two that are seen together in one look overlap.
            self.holds.append(Hold(resource, holder, token, self._open.pop(key), self._last.pop(key) + 1))
        for key in self._now:
            self._open.setdefault(key, time_ns)
            self._last[key] = time_ns
        self._now.clear()

    def finish(self, time_ns: int) -> list[Hold]:
        """All holds, those that are not over included."""
        self.looked(time_ns)
        return self.holds


def _s(time_ns: int) -> str:
    return f"{time_ns // 1_000_000_000}.{time_ns // 1_000_000 % 1000:03d} s"
