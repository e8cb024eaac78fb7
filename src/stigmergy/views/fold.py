"""Folds commits into the rows of one view. Pure. Write what `take_changes` returns before you fold on.

First `gather` the events of some commits, then `add` the rows that are `missing` from the store, then `apply`. Rows
stay in memory between batches; `forget` them when they are too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from stigmergy.agents.codec import tag_of
from stigmergy.agents.view import Origin, Projection, View, ViewPlan
from stigmergy.agents.view_time import JoinSide, Lateness
from stigmergy.base.errors import ViewFailed
from stigmergy.shard.commit import Commit
from stigmergy.shard.commit_reader import Reading, runs_of
from stigmergy.views.joins import Halves
from stigmergy.views.port import shard_name

_TYPE = b"\xa4type"
"""How the tag of a message begins in its bytes, behind the one byte that opens a small map: msgspec puts it first."""
_SHORT_TEXT = range(0xA0, 0xC0)
"""The first byte of a text of up to 31 bytes."""
Found = tuple[Projection, Any, Any, Any]
"""An event for a row: what to do with it, the event, its key, and its origin, if anybody needs it."""


class Fold:
    """The rows of one view, as far as they are in memory."""

    def __init__(self, plan: ViewPlan, *, empty: bool) -> None:
        """`empty`: the store has no rows, so that all there will be are here."""
        self._plan = plan
        self._rows: dict[Any, View | None] = {}
        """By key; None: there is no such row."""
        self._has_all = empty
        self._changed: dict[Any, View | None] = {}
        self._found: list[Found] = []
        self.halves = Halves()
        self._in_rows = False
        self.newest_ns: dict[str, int] = {}
        """By shard the newest event time: of the events that can be late."""
        self.late = 0
        """Events that came later than the view allows."""
        self._by_head: dict[bytes, Projection] = {}
        for tag, projection in plan.projections.items():
            data = tag.encode()
            if len(data) < 32:
                self._by_head[_TYPE + bytes((0xA0 + len(data),)) + data] = projection

    @property
    def rows_count(self) -> int:
        """Rows in memory."""
        return len(self._rows)

    def gather(self, commit: Commit, reading: Reading, fleet: str) -> int:
        """Takes the events out of a commit that the view is for; returns how many. Raises ViewFailed."""
        before = len(self._found)
        by_head, found = self._by_head, self._found
        place = 0
        try:
            events = enumerate(commit.events)
            for run in commit.runs:
                for place, (address, body) in islice(events, run.events):
                    projection = by_head.get(body[1 : 7 + (body[6] & 31)]) if len(body) > 6 else None
                    if projection is None:
                        if body[1:6] == _TYPE and body[6] in _SHORT_TEXT:
                            continue
                        projection = self._plan.projections.get(tag_of(body))
                        if projection is None:
                            continue
                    event = projection.decode(body)
                    origin = None
                    if projection.wants_origin:
                        origin = Origin(address, run.time_ns, fleet, commit.shard, commit.position, place)
                        if projection.timing is not None and not self._is_timely(projection, event, origin):
                            continue
                    key = projection.key(event, origin)
                    if key is not None:
                        found.append((projection, event, key, origin))
            if commit.columns:
                found.extend(self._records(commit, reading, fleet))
        except Exception as error:
            raise self._failed(commit, place, error) from error
        return len(found) - before

    def remember(self, commit: Commit, reading: Reading, fleet: str) -> None:
        """Takes the halves of joins out of a commit that is in the rows already. They make pairs with what is not."""
        before, newest_ns, late = len(self._found), dict(self.newest_ns), self.late
        self._in_rows = True
        try:
            self.gather(commit, reading, fleet)
        finally:
            self._in_rows, self.newest_ns, self.late = False, newest_ns, late
            self._found[before:] = [one for one in self._found[before:] if isinstance(one[1], tuple)]

    def _is_timely(self, projection: Projection, event: Any, origin: Origin) -> bool:
        """Whether an event is folded now. One that is late may not be, and one that is joined makes pairs instead."""
        shard = shard_name(origin.fleet, origin.shard)
        match projection.timing:
            case Lateness(allowed_ns, late, at):
                time_ns, newest_ns = at(event, origin), self.newest_ns.get(shard)
                if newest_ns is None or time_ns > newest_ns:
                    self.newest_ns[shard] = time_ns
                elif time_ns < newest_ns - allowed_ns:
                    self.late += 1
                    return late == "apply"
                return True
            case JoinSide() as side:
                for first, second in self.halves.add(shard, side, event, origin, in_rows=self._in_rows):
                    pair, origins = (first.event, second.event), (first.origin, second.origin)
                    key = side.pair.key(pair, origins)
                    if key is not None:
                        self._found.append((side.pair, pair, key, origins))
                return False
            case _:
                return True

    def _records(self, commit: Commit, reading: Reading, fleet: str) -> Iterator[Found]:
        """The events of compiled agents; a run that has none for this view is passed over."""
        for records in runs_of(commit, reading):
            wanted = [self._plan.projections.get(form.tag) for form in records.layout.forms]
            if not any(wanted):
                continue
            for place, (agent, form) in enumerate(records.heads()):
                projection = wanted[form]
                if projection is None:
                    continue
                index = records.first + place
                event = projection.decode(records.body(place, form))
                address, time_ns = records.address(agent), records.run.time_ns
                origin = Origin(address, time_ns, fleet, commit.shard, commit.position, index)
                if projection.timing is not None and not self._is_timely(projection, event, origin):
                    continue
                key = projection.key(event, origin)
                if key is not None:
                    yield projection, event, key, origin

    def missing(self) -> list[Any]:
        """The keys among what was gathered whose rows are not in memory: read them and `add` them."""
        if self._has_all:
            return []
        return list(dict.fromkeys(key for _, _, key, _ in self._found if key not in self._rows))

    def add(self, keys: Sequence[Any], rows: Sequence[View]) -> None:
        """Rows from the store; of the other keys there are none."""
        self._rows.update(dict.fromkeys(keys))
        for row in rows:
            self._rows[_key(self._plan, row)] = row

    def apply(self) -> None:
        """Folds what was gathered. Raises ViewFailed, after which this fold is of no use."""
        rows, changed, new_row = self._rows, self._changed, self._plan.new_row
        for projection, event, key, origin in self._found:
            row = rows.get(key)
            if row is None:
                row = rows[key] = new_row(key)
            try:
                projection.apply(row, event, origin)
            except Exception as error:
                name = f"{self._plan.name}, row {key!r}"
                raise ViewFailed(f"{name}: {event!r}: {_shown(error)}; {_REMEDY}") from error
            if row._deleted:
                rows[key] = changed[key] = None
            else:
                changed[key] = row
        self._found.clear()

    def take_changes(self) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """The rows that were changed since the last call, as columns, and the keys of those that were removed."""
        changed, self._changed = self._changed, {}
        removed = [key for key, row in changed.items() if row is None]
        if self._has_all:
            for key in removed:
                self._rows.pop(key, None)
        try:
            return [self._plan.values_of(row) for row in changed.values() if row is not None], removed
        except TypeError as error:
            raise ViewFailed(f"{error}; {_REMEDY}") from error

    def forget(self) -> None:
        """Drops the rows in memory; all changes must have been taken."""
        self._rows = {}
        self._has_all = False

    def rows(self) -> dict[Any, View]:
        """All rows, of a fold that began empty and forgot nothing."""
        return {key: row for key, row in self._rows.items() if row is not None}

    def _failed(self, commit: Commit, index: int, error: Exception) -> ViewFailed:
        place = f"shard {commit.shard}, position {commit.position}, event {index}"
        return ViewFailed(f"{self._plan.name}: {place}: {_shown(error)}; {_REMEDY}")


_REMEDY = "the view stands still there; mend it, and start again"


def _key(plan: ViewPlan, row: View) -> Any:
    if len(plan.keys) == 1:
        return getattr(row, plan.keys[0])
    return tuple(getattr(row, name) for name in plan.keys)


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
