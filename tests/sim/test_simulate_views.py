"""Views in the simulator: under all faults their rows are what the logs fold into, and one that cannot be is found."""

from __future__ import annotations

import pytest

from stigmergy import Fleet, Key, Origin, View, project
from stigmergy.base.errors import ConfigError
from stigmergy.sim import ALL, World, simulate
from stigmergy.views.port import ROWS_MAX
from tests.views.zones import VIEWS, Drone, Enter, Measured, ZoneEntered

fleet = Fleet("zones", agents=[Drone], shards=2, views=VIEWS)


@simulate(fleet, agents=6, nodes=2, seeds=3, faults=ALL, for_s=15.0)
def test_rows_are_what_the_logs_fold_into(world: World) -> None:
    def move(drone: str) -> None:
        world.ask(drone, Enter(zone="ABCD"[int(world.now_s * 7) % 4]))
        world.observe(drone, Measured(percent=50.0))

    world.each(every_s=0.5, do=move)


class LastSeen(View):
    """Depends on the order between shards, which nobody promises."""

    zone: Key[str]
    last: str = ""

    @project
    def entered(self, event: ZoneEntered, origin: Origin) -> None:
        self.last = origin.agent


@simulate(
    Fleet("zones", agents=[Drone], shards=2, views=[LastSeen]), agents=8, nodes=1, seeds=2, faults="none", for_s=10.0
)
def last_seen(world: World) -> None:
    world.each(every_s=0.5, do=lambda drone: world.ask(drone, Enter(zone="A")))


def test_a_view_that_depends_on_the_order_between_shards_is_found() -> None:
    with pytest.raises(AssertionError, match=r"view LastSeen at .* is not what its log folds into"):
        last_seen()


class EachMeasured(View):
    """A row for every measurement."""

    percent: Key[int]

    @project(key=lambda event: int(event.percent))
    def measured(self, event: Measured) -> None: ...


@simulate(Fleet("zones", agents=[Drone], views=[EachMeasured]), agents=1, nodes=1, seeds=1, faults="none", for_s=4.0)
def many_rows(world: World) -> None:
    count = 0

    def measure(drone: str) -> None:
        nonlocal count
        for _ in range(ROWS_MAX // 3):
            count += 1
            world.observe(drone, Measured(percent=float(count)))

    world.each(every_s=0.5, do=measure)


def test_a_view_with_more_rows_than_an_answer_has_is_compared_as_a_whole() -> None:
    many_rows()


class OfTwoFleets(View, fleets=("zones", "ground")):
    """What `stigmergy project` keeps."""

    zone: Key[str]
    count: int = 0

    @project
    def entered(self, event: ZoneEntered) -> None:
        self.count += 1


def test_a_view_of_several_fleets_is_refused_where_the_scenario_is_defined() -> None:
    with pytest.raises(ConfigError, match=r"view OfTwoFleets is of fleet 'ground' too.*given\(…\)\.project"):
        simulate(Fleet("zones", agents=[Drone], views=[OfTwoFleets]), agents=1)(lambda world: None)
