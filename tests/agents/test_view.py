"""What a view may be is said while it is defined, with the place and the remedy."""

from __future__ import annotations

import random
import time
from datetime import datetime
from random import choice
from typing import Any

import pytest

from stigmergy.agents.messages import Command, Event, transient, upcast
from stigmergy.agents.view import Key, Origin, View, plan_of, project
from stigmergy.base.errors import DefinitionError
from stigmergy.node.declaration import Declaration
from tests.views.zones import Drone


class Parked(Event):
    zone: str
    spot: int = 0


class Passed(Event):
    gate: str


class Glimpsed(Event, keep=transient):
    zone: str


class Park(Command):
    zone: str


def refused(match: str, body: Any) -> None:
    with pytest.raises(DefinitionError, match=match):
        body()


def test_the_key_comes_from_the_event_from_the_agent_or_from_a_function() -> None:
    class Spots(View):
        zone: Key[str]
        spot: Key[int]
        count: int = 0

        @project
        def parked(self, event: Parked) -> None:
            self.count += 1

        @project(key=lambda event, origin: (origin.id, len(event.gate)) if event.gate else None)
        def passed(self, event: Passed) -> None:
            self.count += 1

    plan = plan_of(Spots)
    origin = Origin("Cart/7", 2_500_000_000, "fleet", 0, 1, 0)
    assert origin.time == 2.5
    parked, passed = plan.projections["Parked@1"], plan.projections["Passed@1"]
    assert parked.key(Parked(zone="A", spot=3), None) == ("A", 3)
    assert passed.key(Passed(gate="north"), origin) == ("7", 5)
    assert passed.key(Passed(gate=""), origin) is None

    class Carts(View):
        agent: Key[str]

        @project
        def parked(self, event: Parked) -> None: ...

    assert plan_of(Carts).projections["Parked@1"].key(Parked(zone="A"), origin) == "Cart/7"

    class CartSpots(View):
        agent: Key[str]
        zone: Key[str]

        @project
        def parked(self, event: Parked) -> None: ...

    assert plan_of(CartSpots).projections["Parked@1"].key(Parked(zone="A"), origin) == ("Cart/7", "A")


def test_a_key_of_another_type_is_no_row() -> None:
    class Spots(View):
        spot: Key[int]

        @project(key=lambda event: event.zone)
        def parked(self, event: Parked) -> None: ...

    with pytest.raises(TypeError, match=r"the key of Parked\(.*\) is 'A', and it must be int, or None for no row"):
        plan_of(Spots).projections["Parked@1"].key(Parked(zone="A"), None)


def test_a_view_needs_a_key_defaults_and_handlers() -> None:
    def no_key() -> None:
        class Loads(View):
            zone: str = ""

            @project
            def parked(self, event: Parked) -> None: ...

    def no_default() -> None:
        class Loads(View):
            zone: Key[str]
            count: int

            @project
            def parked(self, event: Parked) -> None: ...

    def no_handler() -> None:
        class Loads(View):
            zone: Key[str]

    def key_of_float() -> None:
        class Loads(View):
            zone: Key[float]

            @project
            def parked(self, event: Parked) -> None: ...

    def name_of_a_table() -> None:
        class stigmergy_views(View):
            zone: Key[str]

            @project
            def parked(self, event: Parked) -> None: ...

    refused("no field is a Key", no_key)
    refused("count needs a default", no_default)
    refused("no method is marked with @project", no_handler)
    refused("zone: a Key is str, int, bool or bytes", key_of_float)
    refused("the name of a view is that of a table", name_of_a_table)


def test_a_handler_without_a_key_is_refused_with_its_line() -> None:
    def unknown_field() -> None:
        class Loads(View):
            zone: Key[str]

            @project
            def passed(self, event: Passed) -> None: ...

    def other_type() -> None:
        class Loads(View):
            spot: Key[str]

            @project
            def parked(self, event: Parked) -> None: ...

    refused(r"Loads.passed \(test_view.py:\d+\): Passed has no field 'zone'.*@project\(key=lambda event", unknown_field)
    refused("Parked.spot is int, and the key is str", other_type)


def test_a_handler_only_folds_kept_events_into_its_row() -> None:
    def command() -> None:
        class Loads(View):
            zone: Key[str]

            @project
            def parked(self, event: Park) -> None: ...

    def unkept() -> None:
        class Loads(View):
            zone: Key[str]

            @project
            def parked(self, event: Glimpsed) -> None: ...

    def key_assigned() -> None:
        class Loads(View):
            zone: Key[str]

            @project
            def parked(self, event: Parked) -> None:
                self.zone = event.zone

    def generator() -> None:
        class Loads(View):
            zone: Key[str]

            @project
            def parked(self, event: Parked) -> Any:
                yield event

    def twice() -> None:
        class Loads(View):
            zone: Key[str]

            @project
            def parked(self, event: Parked) -> None: ...

            @project
            def again(self, event: Parked) -> None: ...

    refused("Park is not an event", command)
    refused("Glimpsed is transient, so no log has it", unkept)
    refused("assigns self.zone, which says which row it is", key_assigned)
    refused("yields nothing and waits for nothing", generator)
    refused("another handler is for Parked@1 already", twice)


def test_code_that_reads_what_is_not_in_the_log_is_refused() -> None:
    def clock() -> None:
        class Loads(View):
            zone: Key[str]
            at: float = 0.0

            @project
            def parked(self, event: Parked) -> None:
                self.at = time.time()

    def calendar() -> None:
        class Loads(View):
            zone: Key[str]
            at: str = ""

            @project
            def parked(self, event: Parked) -> None:
                self.at = str(datetime.now())  # noqa: DTZ005

    def chance() -> None:
        class Loads(View):
            zone: Key[str]

            @project(key=lambda event: random.choice("AB"))
            def parked(self, event: Parked) -> None: ...

    def imported() -> None:
        class Loads(View):
            zone: Key[str]

            @project(key=lambda event: choice("AB"))
            def parked(self, event: Parked) -> None: ...

    def inner() -> None:
        class Loads(View):
            zone: Key[str]
            codes: tuple[int, ...] = ()

            @project
            def parked(self, event: Parked) -> None:
                self.codes = tuple(hash(letter) for letter in event.zone)

    refused("uses time, and a projection is made again from the log", clock)
    refused("uses datetime", calendar)
    refused("uses random", chance)
    refused("uses choice", imported)
    refused("uses hash", inner)


class OldParked(Event, name="Stopped", version=1):
    place: str


class Stopped(Event, version=2):
    zone: str


@upcast
def stopped_1_to_2(old: OldParked) -> Stopped:
    return Stopped(zone=old.place)


def test_old_versions_of_an_event_are_carried_to_the_newest() -> None:
    from stigmergy.agents.codec import encode

    class Stops(View):
        zone: Key[str]

        @project
        def stopped(self, event: Stopped) -> None: ...

    projections = plan_of(Stops).projections
    assert projections["Stopped@1"].decode(encode(OldParked(place="A"))) == Stopped(zone="A")
    assert projections["Stopped@2"].decode(encode(Stopped(zone="B"))) == Stopped(zone="B")


def made(step: int, start: int = 0, **how: Any) -> bytes:
    """The digest of a view of which something differs."""
    if step == 1:

        class Loads(View, **how):
            zone: Key[str]
            count: int = start

            @project
            def parked(self, event: Parked) -> None:
                self.count += 1

        return plan_of(Loads).digest

    class Loads(View, **how):  # type: ignore[no-redef]
        zone: Key[str]
        count: int = start

        @project
        def parked(self, event: Parked) -> None:
            # A comment changes nothing.
            self.count += 2

    return plan_of(Loads).digest


def test_the_digest_changes_with_the_code_the_types_and_the_version() -> None:
    assert made(1) == made(1)
    assert len({made(1), made(2), made(1, start=1), made(1, version=2)}) == 4


def test_two_views_of_one_name_are_refused() -> None:
    class Loads(View):
        zone: Key[str]

        @project
        def parked(self, event: Parked) -> None: ...

    class LOADS(View):
        zone: Key[str]

        @project
        def parked(self, event: Parked) -> None: ...

    refused("two views are called LOADS", lambda: Declaration("a", agents=[Drone], views=[Loads, LOADS]))
    refused("is not a view", lambda: Declaration("a", agents=[Drone], views=[Drone]))  # type: ignore[list-item]


def test_a_value_of_another_type_is_refused_before_it_is_written() -> None:
    class Loads(View):
        zone: Key[str]
        level: float = 0.0
        count: int = 0
        tags: tuple[str, ...] = ()

        @project
        def parked(self, event: Parked) -> None: ...

    plan = plan_of(Loads)
    row: Any = Loads(zone="A", level=3, tags=("x",))
    values = plan.values_of(row)
    assert [type(one) for one in values] == [str, float, int, str]
    assert plan.row_of(values) == Loads(zone="A", level=3.0, tags=("x",))
    for count in ("4", 2**63, None):
        row.count = count
        with pytest.raises(TypeError, match=r"Loads\.count is declared as int and was given a"):
            plan.values_of(row)
