"""What a fleet declares for its map: what is taken, and what is refused with which sentence."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.base.errors import DefinitionError
from stigmergy.node.map_layers import LAYERS_MAX, MapPoint


class Moved(Event):
    lat: float


class Drone(Agent):
    lat: float = 52.5
    lon: float = 13.4
    heading: float = 90.0

    @evolve
    def moved(self, event: Moved) -> None:
        self.lat = event.lat


class Cart(Drone):
    pass


class Stranger(Drone):
    pass


def declare() -> Fleet:
    return Fleet("yard", agents=[Drone, Cart])


def test_points_have_longitude_first_and_headings_in_parts_of_a_turn() -> None:
    fleet = declare()
    fleet.map(Drone, at=lambda d: (d.lat, d.lon), heading=lambda d: d.heading, colour=lambda d: "ok")
    fleet.map(Cart, at=lambda c: None)
    layer = fleet.map_layers["Drone"]
    assert layer.point_of(Drone()) == MapPoint(13.4, 52.5, 64, "ok")
    assert layer.point_of(Drone(heading=-90.0)) == MapPoint(13.4, 52.5, 192, "ok")
    assert layer.point_of(Drone(heading=359.9)) == MapPoint(13.4, 52.5, 0, "ok")
    assert fleet.map_layers["Cart"].point_of(Cart()) is None
    assert list(fleet.map_layers) == ["Drone", "Cart"]


def test_plane_has_x_first() -> None:
    fleet = declare()
    fleet.map(Cart, at=lambda c: (1000, -2000.5), plane="xy", trail_s=0)
    assert fleet.map_layers["Cart"].point_of(Cart()) == MapPoint(1000.0, -2000.5, 0, "")


def test_what_an_agent_draws_is_json_of_bounded_size() -> None:
    fleet = declare()
    fleet.map(Drone, at=lambda d: None)
    feature = {"type": "Feature", "properties": {"name": "way"}, "geometry": None}
    fleet.map(Cart, at=lambda c: None, draw=lambda c: [feature] * int(c.lat))
    assert fleet.map_layers["Drone"].drawing_of(Drone()) == b"[]"
    drawing_of = fleet.map_layers["Cart"].drawing_of
    assert drawing_of(Cart(lat=0.0)) == b"[]"
    assert json.loads(drawing_of(Cart(lat=2.0))) == [feature, feature]
    with pytest.raises(ValueError, match="it draws 126,001 bytes of GeoJSON; 65,536 at most"):
        drawing_of(Cart(lat=2000.0))


@pytest.mark.parametrize("drawn", [[{"type": "Point"}], [7], {"type": "FeatureCollection", "features": []}])
def test_what_is_no_feature_is_not_drawn(drawn: Any) -> None:
    fleet = declare()
    fleet.map(Drone, at=lambda d: None, draw=lambda d: drawn)
    with pytest.raises(ValueError, match="GeoJSON features"):
        fleet.map_layers["Drone"].drawing_of(Drone())


@pytest.mark.parametrize("at", [(91.0, 0.0), (0.0, 181.0), (math.nan, 0.0), (math.inf, 0.0)])
def test_a_place_that_is_none_is_no_point(at: tuple[float, float]) -> None:
    fleet = declare()
    fleet.map(Drone, at=lambda d: at)
    with pytest.raises(ValueError, match="no latitude and longitude"):
        fleet.map_layers["Drone"].point_of(Drone())


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Stranger, {}, "no agent class of it; there are Drone, Cart"),
        ("Drone", {}, "no agent class of it"),
        (Cart, {}, "map(Cart) is declared twice"),
        (Drone, {"at": (1, 2)}, "at=(1, 2); give a function"),
        (Drone, {"at": None}, "at=None; give a function"),
        (Drone, {"heading": 90}, "heading=90; give a function"),
        (Drone, {"colour": "red"}, "colour='red'; give a function"),
        (Drone, {"draw": []}, "draw=[]; give a function"),
        (Drone, {"plane": "mercator"}, "plane='mercator'; give 'geo'"),
        (Drone, {"plane": "xy"}, "a map has one plane"),
        (Drone, {"trail_s": -1}, "trail_s=-1; give 0 to 3600"),
        (Drone, {"trail_s": True}, "trail_s=True"),
    ],
)
def test_wrong_map_is_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    fleet = declare()
    fleet.map(Cart, at=lambda c: (c.lat, c.lon))
    with pytest.raises(DefinitionError) as refused:
        fleet.map(kind, **{"at": lambda d: (d.lat, d.lon), **given})
    assert said in str(refused.value)
    assert list(fleet.map_layers) == ["Cart"]


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("zones", "other.geojson", "declared twice"),
        ("a/b", "zones.geojson", "letters, digits"),
        ("", "zones.geojson", "letters, digits"),
        (None, 7, "give the path"),
        ("roads", 5, "give the path of a GeoJSON file, or a function"),
    ],
)
def test_wrong_layer_is_refused(name: Any, source: Any, said: str) -> None:
    fleet = declare()
    fleet.layer("zones", Path("zones.geojson"))
    with pytest.raises(DefinitionError) as refused:
        fleet.layer(name, source)
    assert said in str(refused.value)


def test_layers_are_bounded() -> None:
    fleet = declare()
    for number in range(LAYERS_MAX):
        fleet.layer(f"l{number}", dict)
    with pytest.raises(DefinitionError, match="put several into one file"):
        fleet.layer("one-more", dict)
