"""Checks recorded histories of a ledger and of its claims: whether one order explains what all have seen.

    appends and reads          log_violations(history, log)
    grants and beliefs         holding_violations(holds)
    actions behind a fence     fence_violations(actions)

Each returns sentences; an empty list is good. A history is linearizable if every operation can be given a moment
between its start and its end, so that all of them, one after the other, do what a single ledger would have done. That
is hard to decide in general. Here the order of writes is known, because a log has positions and grants have tokens:
each write is put at the earliest moment that its start, and everything before it in that order, allow. If that is too
late for one of them, no other choice would have been earlier. So one pass is enough, and exact both ways;
`explained_by_search` tries all orders instead, for small histories, and the tests compare the two.

Times are nanoseconds of one clock: processes of one machine share its monotonic one. Two operations that touch in one
moment may be in either order. An operation without an answer is UNKNOWN: it may have happened at any time since its
start, or never, but at most once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

NEVER_NS = 2**63 - 1
SHOWN_COUNT_MAX = 20
"""Sentences that are returned at most; one is enough to fail."""


class OperationOutcome(enum.Enum):
    """The answer to the caller."""

    COMMITTED = "committed"
    REFUSED = "refused"
    """It did not happen, and never will."""
    UNKNOWN = "unknown"


class Append(Struct, frozen=True, tag="append"):
    """Entries that somebody wanted to append. Bodies must differ from those of every other append."""

    client: str
    start_ns: int
    end_ns: int
    outcome: OperationOutcome
    entries: tuple[bytes, ...]
    position: int = 0
    """Of the first, if committed."""

    @property
    def latest_ns(self) -> int:
        """The last moment at which it can have happened."""
        return self.end_ns if self.outcome is OperationOutcome.COMMITTED else NEVER_NS


class Read(Struct, frozen=True, tag="read"):
    """What a read has returned."""

    client: str
    start_ns: int
    end_ns: int
    after: int
    count_max: int
    entries: tuple[tuple[int, bytes], ...]
    """Positions and bodies."""
    is_fresh: bool = True
    """Whether it promised everything that was there when it began; otherwise it may be behind."""

    @property
    def saw_the_end(self) -> bool:
        """Whether it says that there was nothing behind what it returned."""
        return self.is_fresh and len(self.entries) < self.count_max


Operation = Append | Read
Log = Sequence[tuple[int, bytes]]
"""The whole log as it was in the end: positions and bodies."""


class ObservedHold(Struct, frozen=True):
    """Somebody who believed to hold something, from one moment to another."""

    client: str
    resource: str
    token: int
    asked_ns: int
    told_ns: int
    """From when on it believed it."""
    over_ns: int
    """The last moment at which it did."""


class FencedAction(Struct, frozen=True):
    """Something done under a token, at a place that refuses tokens older than the newest it has seen."""

    client: str
    resource: str
    token: int
    start_ns: int
    end_ns: int
    outcome: OperationOutcome

    @property
    def latest_ns(self) -> int:
        """The last moment at which it can have happened."""
        return NEVER_NS if self.outcome is OperationOutcome.UNKNOWN else self.end_ns


# ---------------------------------------------------------------------- the log


def log_violations(history: Iterable[Operation], log: Log) -> list[str]:
    """What in a history of appends and reads no single log, which ended like this one, can have done."""
    operations = list(history)
    appends = [one for one in operations if isinstance(one, Append)]
    reads = [one for one in operations if isinstance(one, Read)]
    found = _log_itself(log) + _contents(appends, log) + _prefixes(reads, log)
    return (found or _in_time(appends, reads, log))[:SHOWN_COUNT_MAX]


def _log_itself(log: Log) -> list[str]:
    found = [
        f"the log goes from position {before[0]} to {after[0]}"
        for before, after in pairwise(log)
        if after[0] <= before[0]
    ]
    seen: dict[bytes, int] = {}
    for position, body in log:
        if body in seen:
            found.append(f"{_short(body)} is in the log twice, at {seen[body]} and at {position}")
        seen.setdefault(body, position)
    return found


def _contents(appends: Sequence[Append], log: Log) -> list[str]:
    """Nothing acknowledged is lost, nothing refused is there, nothing is torn, nothing comes from nowhere."""
    found: list[str] = []
    places = {body: index for index, (_, body) in enumerate(log)}
    asked: dict[bytes, str] = {}
    for append in appends:
        for body in append.entries:
            asked[body] = append.client
        indices = [places.get(body) for body in append.entries]
        there = [index for index in indices if index is not None]
        what = f"{append.client}: {_short(append.entries[0])}"
        if append.outcome is OperationOutcome.REFUSED:
            if there:
                found.append(f"{what} was refused, and is in the log at {log[there[0]][0]}")
            continue
        if not there:
            if append.outcome is OperationOutcome.COMMITTED:
                found.append(f"{what} was acknowledged, and is not in the log")
            continue
        if indices != list(range(there[0], there[0] + len(indices))):
            found.append(f"{what}: its {len(indices)} entries are torn; {len(there)} are in the log")
        positions = [log[index][0] for index in there]
        if positions != list(range(positions[0], positions[0] + len(there))):
            found.append(f"{what}: its entries have the positions {positions}, which are not consecutive")
        if append.outcome is OperationOutcome.COMMITTED and positions[0] != append.position:
            found.append(f"{what} was acknowledged at {append.position}, and is at {positions[0]}")
    found += [f"{_short(body)} at {position} was appended by nobody" for position, body in log if body not in asked]
    return found


def _prefixes(reads: Sequence[Read], log: Log) -> list[str]:
    """Every read returns what lies behind its position, without holes."""
    found: list[str] = []
    for read in reads:
        start = index_behind(log, read.after)
        expected = tuple(log[start : start + len(read.entries)])
        if len(read.entries) > read.count_max:
            found.append(f"{read.client}: a read of at most {read.count_max} returned {len(read.entries)} entries")
        elif read.entries != expected:
            wrong = next(
                (index for index, pair in enumerate(zip(read.entries, expected, strict=False)) if pair[0] != pair[1]),
                len(expected),
            )
            position, body = read.entries[wrong]
            found.append(
                f"{read.client}: a read behind {read.after} returned {_short(body)} at {position}, the log has "
                f"{_at(log, start + wrong)}"
            )
    return found


def _in_time(appends: Sequence[Append], reads: Sequence[Read], log: Log) -> list[str]:
    """Whether the order of the log agrees with the clock. What is in the log is known to be right by now."""
    found: list[str] = []
    places = {body: index for index, (_, body) in enumerate(log)}
    by_place = {places[append.entries[0]]: append for append in appends if append.entries[0] in places}
    not_before: dict[int, int] = {}
    """By length of the log: it was still so short when this began."""
    for read in reads:
        if read.saw_the_end:
            length = index_behind(log, read.after) + len(read.entries)
            not_before[length] = max(not_before.get(length, 0), read.start_ns)
    moments = [0]
    """The earliest moment at which the log can have had this length."""
    now_ns = 0
    for place, append in sorted(by_place.items()):
        now_ns = max(now_ns, append.start_ns, not_before.get(place, 0))
        if now_ns > append.latest_ns:
            found.append(
                f"{append.client}: {_short(append.entries[0])} at {log[place][0]} was acknowledged before what comes "
                "earlier in the log can have happened, or somebody has read later that it was not there yet"
            )
        # Inside of an append nobody may see the log: it is there or not. So all its lengths come at one moment, and a
        # read that ended with a part of it would have had to end before it came.
        moments += [now_ns] * len(append.entries)
        for length in range(place + 1, place + len(append.entries)):
            if length in not_before:
                found.append(f"{append.client}: somebody has read a part of {_short(append.entries[0])} as the end")
    for read in reads:
        length = index_behind(log, read.after) + len(read.entries)
        if moments[length] > read.end_ns:
            kind = "saw what was not there yet" if read.entries else "was told of an end that was not there yet"
            found.append(
                f"{read.client}: a read behind {read.after} {kind}, or missed what had been acknowledged before"
            )
    return found


def index_behind(log: Log, after: int) -> int:
    """How many entries lie at or before a position."""
    low, high = 0, len(log)
    while low < high:
        middle = (low + high) // 2
        if log[middle][0] <= after:
            low = middle + 1
        else:
            high = middle
    return low


def _at(log: Log, index: int) -> str:
    return f"{_short(log[index][1])} at {log[index][0]}" if index < len(log) else "nothing there"


def _short(body: bytes) -> str:
    return repr(body[:40])


# ---------------------------------------------------------------------- who holds


def holding_violations(holds: Iterable[ObservedHold]) -> list[str]:
    """Two at a time, a token that two have, or tokens whose order is not that of time."""
    found: list[str] = []
    by_resource: dict[str, list[ObservedHold]] = {}
    for hold in holds:
        by_resource.setdefault(hold.resource, []).append(hold)
    for resource, mine in sorted(by_resource.items()):
        owner: dict[int, str] = {}
        for hold in mine:
            if owner.setdefault(hold.token, hold.client) != hold.client:
                found.append(f"{resource}: token {hold.token} was given to {owner[hold.token]} and to {hold.client}")
        latest: ObservedHold | None = None
        for hold in sorted(mine, key=lambda one: (one.told_ns, one.token)):
            if latest is not None and hold.told_ns < latest.over_ns and hold.client != latest.client:
                found.append(
                    f"{resource}: {latest.client} (token {latest.token}) and {hold.client} (token {hold.token}) both "
                    f"believed to hold it for {(min(latest.over_ns, hold.over_ns) - hold.told_ns) / 1e6:.3f} ms"
                )
            if latest is None or hold.over_ns > latest.over_ns:
                latest = hold
        asked_ns = 0
        for hold in sorted(mine, key=lambda one: one.token):
            asked_ns = max(asked_ns, hold.asked_ns)
            if asked_ns > hold.told_ns:
                found.append(
                    f"{resource}: {hold.client} was told of token {hold.token} before somebody has asked who got a "
                    "lower one"
                )
    return found[:SHOWN_COUNT_MAX]


# ---------------------------------------------------------------------- behind a fence


def fence_violations(actions: Iterable[FencedAction]) -> list[str]:
    """What no fence, one for each resource, can have done: let an older token through behind a newer one, or refuse
    one that nothing newer had overtaken."""
    found: list[str] = []
    by_resource: dict[str, list[FencedAction]] = {}
    for action in actions:
        by_resource.setdefault(action.resource, []).append(action)
    for resource, mine in sorted(by_resource.items()):
        taken = [one for one in mine if one.outcome is OperationOutcome.COMMITTED]
        for action in taken:
            if _earliest_ns(action, taken) > action.end_ns:
                found.append(f"{resource}: {action.client} acted under {action.token}, behind a newer one")
        # Of what nobody knows, whatever can have happened may explain a refusal.
        maybe = [
            one
            for one in mine
            if one.outcome is OperationOutcome.UNKNOWN
            and not any(_earliest_ns(one, taken) > other.end_ns for other in taken if other.token > one.token)
        ]
        for action in mine:
            if action.outcome is OperationOutcome.REFUSED and not any(
                other.token > action.token and _earliest_ns(other, taken) <= action.end_ns for other in taken + maybe
            ):
                found.append(
                    f"{resource}: {action.client} was refused under {action.token}, which nothing had overtaken"
                )
    return found[:SHOWN_COUNT_MAX]


def _earliest_ns(action: FencedAction, taken: Sequence[FencedAction]) -> int:
    """Not before its own start, nor before that of anything that was let through under a lower token."""
    return max([action.start_ns, *(one.start_ns for one in taken if one.token < action.token)])
