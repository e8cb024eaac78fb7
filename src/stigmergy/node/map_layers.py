"""What a fleet shows on a map, as users declare it: where agents of a kind are, and layers of GeoJSON beneath them.

The functions are pure and see durable state only. They run only while somebody looks at the map. A declaration does
nothing by itself: `control/positions.py` calls the functions, `serve` draws.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from stigmergy.agents.agent import Agent
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import DefinitionError

AgentT = TypeVar("AgentT", bound=Agent)
Plane = Literal["geo", "xy"]
"""`geo`: latitude and longitude in degrees. `xy`: metres, or whatever unit the fleet has; y goes up."""
PLANES = ("geo", "xy")
TRAIL_S_MAX = 3_600.0
TURN = 256
"""A heading is kept in so many parts of a turn."""
NO_HEADING = 0
LAYERS_MAX = 32
DRAWN_BYTES_MAX = 65_536
"""Of the GeoJSON that one agent draws; an agent that draws more is left out."""
NOTHING_DRAWN = b"[]"
_LAYER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
LayerSource = str | Path | Callable[[], Any]
"""A file with GeoJSON, or a function that returns a FeatureCollection."""


class MapPoint(Struct, frozen=True):
    """Where an agent is on the map: x is the longitude or x, y the latitude or y."""

    x: float
    y: float
    heading: int
    """In 256ths of a turn, clockwise from north."""
    colour: str


class MapLayer(Struct, frozen=True):
    """How agents of one kind are shown."""

    kind: str
    at: Callable[[Any], tuple[float, float] | None]
    heading: Callable[[Any], float] | None
    colour: Callable[[Any], str] | None
    plane: Plane
    trail_s: float
    draw: Callable[[Any], Sequence[Mapping[str, Any]]] | None = None

    def drawing_of(self, agent: Any) -> bytes:
        """What an agent draws, as a JSON list of GeoJSON features. Raises what the function raises, and ValueError."""
        if self.draw is None:
            return NOTHING_DRAWN
        features: list[Any] = list(self.draw(agent))
        if not features:
            return NOTHING_DRAWN
        if any(not isinstance(one, Mapping) or one.get("type") != "Feature" for one in features):
            raise ValueError("draw returned something else than a list of GeoJSON features")
        text = msgspec.json.encode(features)
        if len(text) > DRAWN_BYTES_MAX:
            raise ValueError(f"it draws {len(text):,} bytes of GeoJSON; {DRAWN_BYTES_MAX:,} at most")
        return text

    def point_of(self, agent: Any) -> MapPoint | None:
        """Where an agent is; None if it is nowhere yet. Raises what the functions raise, and ValueError."""
        found = self.at(agent)
        if found is None:
            return None
        first, second = float(found[0]), float(found[1])
        if self.plane == "geo":
            if not (-90 <= first <= 90 and -180 <= second <= 180):
                raise ValueError(f"({first:g}, {second:g}) is no latitude and longitude")
            first, second = second, first
        elif not (math.isfinite(first) and math.isfinite(second)):
            raise ValueError(f"({first:g}, {second:g}) is nowhere")
        heading = NO_HEADING if self.heading is None else round(self.heading(agent) * TURN / 360) % TURN
        return MapPoint(first, second, heading, "" if self.colour is None else str(self.colour(agent)))


class MapLayers:
    """The map's side of a fleet."""

    name: str
    plans: dict[str, AgentPlan]

    def __init__(self) -> None:
        self.map_layers: dict[str, MapLayer] = {}
        """By agent kind, in the order of their declaration."""
        self.drawn_layers: dict[str, LayerSource] = {}
        """GeoJSON by name, the lowest first."""

    def map(
        self,
        kind: type[AgentT],
        *,
        at: Callable[[AgentT], tuple[float, float] | None],
        heading: Callable[[AgentT], float] | None = None,
        colour: Callable[[AgentT], str] | None = None,
        plane: Plane = "geo",
        trail_s: float = 30.0,
        draw: Callable[[AgentT], Sequence[Mapping[str, Any]]] | None = None,
    ) -> None:
        """Shows the agents of a kind on the map of `stigmergy serve`.

        `at` says where an agent is by its state: latitude and longitude, or x and y with `plane="xy"`; None while it is
        nowhere. `heading` is in degrees, clockwise from north. `colour` names what the agent is like, such as "ok" and
        "low"; the page gives each name a colour. `trail_s` is how long the line behind it is; 0 for none. `draw`
        returns GeoJSON features, such as the way of a job; one without the property `colour` has that of the agent.
        """
        plan = next((one for one in self.plans.values() if one.cls is kind), None)
        if plan is None:
            raise DefinitionError(
                f"fleet {self.name!r}: map({kind!r}) is no agent class of it; there are {', '.join(self.plans)}"
            )
        what = f"fleet {self.name!r}: map({plan.kind})"
        if plan.kind in self.map_layers:
            raise DefinitionError(f"{what} is declared twice; keep one of both")
        for name, function in (("at", at), ("heading", heading), ("colour", colour), ("draw", draw)):
            if not callable(function) and (name == "at" or function is not None):
                raise DefinitionError(f"{what}: {name}={function!r}; give a function of the agent, such as a lambda")
        if plane not in PLANES:
            raise DefinitionError(f"{what}: plane={plane!r}; give 'geo' for latitude and longitude, or 'xy'")
        if other := next((one for one in self.map_layers.values() if one.plane != plane), None):
            raise DefinitionError(
                f"{what}: plane={plane!r}, and {other.kind} has {other.plane!r}; a map has one plane, choose one"
            )
        if not _is_trail(trail_s):
            raise DefinitionError(f"{what}: trail_s={trail_s!r}; give 0 to {TRAIL_S_MAX:g} seconds")
        self.map_layers[plan.kind] = MapLayer(plan.kind, at, heading, colour, plane, float(trail_s), draw)

    def layer(self, name: str, source: LayerSource) -> None:
        """Draws GeoJSON beneath the agents, such as zones, roads or outlines: a file, or a function that returns a
        FeatureCollection. The file is read by `stigmergy serve`, which refuses to start with one that it cannot use."""
        what = f"fleet {self.name!r}: layer({name!r})"
        if _LAYER_NAME.fullmatch(str(name)) is None:
            raise DefinitionError(f"{what}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
        if name in self.drawn_layers:
            raise DefinitionError(f"{what} is declared twice; keep one of both")
        if not isinstance(source, str | Path) and not callable(source):
            raise DefinitionError(f"{what}: {source!r}; give the path of a GeoJSON file, or a function")
        if len(self.drawn_layers) >= LAYERS_MAX:
            raise DefinitionError(f"{what}: {LAYERS_MAX} layers are there already; put several into one file")
        self.drawn_layers[name] = source


def _is_trail(trail_s: object) -> bool:
    return type(trail_s) in (int, float) and 0 <= float(str(trail_s)) <= TRAIL_S_MAX


def layer_of(layers: Mapping[str, MapLayer], address: str) -> MapLayer | None:
    """How an agent is shown; None if it is not."""
    return layers.get(address.partition("/")[0])
