"""Unit tests of views: given events of a log, these are the rows.

    rows = given(ZoneEntered(zone="A"), ("Drone/D-2", ZoneEntered(zone="A"))).project(ZoneLoad)
    assert rows == [ZoneLoad(zone="A", active=2)]

Besides, it is checked that the rows can be written and read back, also between any two events, and that a second fold
gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import SECOND_NS, Event, Keeping, spec_of
from stigmergy.agents.view import View, ViewPlan, plan_of
from stigmergy.shard.commit import COMMIT_FORMAT, GENESIS, Commit, EventRun, HashAlgorithm
from stigmergy.shard.directory import Directory
from stigmergy.views.fold import Fold

V = TypeVar("V", bound=View)
FLEET = "test"
AGENT = "Agent/one"
"""Whose events they are, where it is not said."""


class LogScenario:
    """Events that a log has, in their order."""

    def __init__(self, events: Sequence[Event | tuple[str, Event]], at: float) -> None:
        __tracebackhide__ = True
        self._at_ns = int(at * SECOND_NS)
        self._events = [one if isinstance(one, tuple) else (AGENT, one) for one in events]
        for _, event in self._events:
            if spec_of(type(event)).keep.promise is Keeping.TRANSIENT:
                raise AssertionError(f"{event!r} is transient, so no log has it")

    def project(self, view: type[V]) -> list[V]:
        """The rows that a view makes of these events, in the order of their keys. Each event is a second later."""
        __tracebackhide__ = True
        plan = plan_of(view)
        rows, again = self._rows(plan, forgetful=False), self._rows(plan, forgetful=True)
        if repr(rows) != repr(again):
            raise AssertionError(
                f"{view.__name__} makes\n    {rows}\nand, with its rows written and read back after each event,\n"
                f"    {again}\nA handler keeps something beside its row, or a field does not have the type it declares."
            )
        found: list[Any] = [plan.row_of(values) for values in rows]
        return found

    def _rows(self, plan: ViewPlan, *, forgetful: bool) -> list[tuple[Any, ...]]:
        fold, kept = Fold(plan, empty=not forgetful), dict[Any, tuple[Any, ...]]()
        for number, (address, event) in enumerate(self._events):
            run = EventRun(1, self._at_ns + number * SECOND_NS, "test")
            events = [(address, encode(event))]
            one = Commit(COMMIT_FORMAT, HashAlgorithm.BLAKE3_256, 0, number + 1, 1, GENESIS, [run], events)
            fold.gather(one, Directory(), plan.fleets[0] if plan.fleets else FLEET)
            keys = fold.missing()
            fold.add(keys, [plan.row_of(kept[key]) for key in keys if key in kept])
            fold.apply()
            changed, removed = fold.take_changes()
            kept.update((plan.key_of(values), values) for values in changed)
            for key in removed:
                kept.pop(key, None)
            if forgetful:
                fold.forget()
        return [kept[key] for key in sorted(kept)]
