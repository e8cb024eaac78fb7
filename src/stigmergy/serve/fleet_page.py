"""The page that shows a fleet: `/` and its files, and what it needs to draw itself: `/v1/page`, `/v1/layers/{name}`.

The files come with the package (`serve/web`, built from `web/` by `make web`) and load nothing from elsewhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.messages import Command, Event
from stigmergy.agents.text import messages_of
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, NotRunning, Overloaded
from stigmergy.control.protocol import SpanRequest
from stigmergy.node.declaration import Declaration
from stigmergy.node.map_layers import LayerSource
from stigmergy.serve.access import DeniedRequest
from stigmergy.serve.asker import Asker
from stigmergy.serve.http import HttpAnswer, HttpCall, HttpRoute, json_answer
from stigmergy.serve.schemas import schema_of
from stigmergy.serve.tokens import READ

LAYER_BYTES_MAX = 16 * 1024 * 1024
LAYER_S = 1.0
"""A function of a layer is called so often at most."""
GEOJSON = b"application/geo+json"
GEOMETRIES = (
    *("Feature", "FeatureCollection", "GeometryCollection"),
    *("Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon"),
)
TYPES = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""The page may run its own scripts and ask this server; nothing else."""
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class DescribedMessage(Struct, frozen=True):
    """A command or an event, with the JSON Schema of its fields."""

    name: str
    schema: dict[str, Any]


class DescribedLayer(Struct, frozen=True):
    """How agents of a kind are shown on the map; `layer` is its number there."""

    layer: int
    plane: str
    heading: bool
    trail_s: float


class DescribedKind(Struct, frozen=True):
    """An agent kind; without `map` its agents are not on the map."""

    kind: str
    commands: list[DescribedMessage]
    events: list[DescribedMessage]
    state: dict[str, Any]
    map: DescribedLayer | None
    workflow: dict[str, list[Any]] = {}
    """Of the runs of a workflow: the steps of each of its versions."""


class DrawnLayer(Struct, frozen=True):
    """A layer of GeoJSON."""

    name: str
    url: str


class PageDescription(Struct, frozen=True):
    """What a page needs to draw itself. `from` and `to` are the times of the first and the last commit of the log;
    `node` is the node that answers, empty without a bus."""

    fleet: str
    version: str
    mode: str
    scopes: tuple[str, ...]
    kinds: list[DescribedKind]
    layers: list[DrawnLayer]
    node: str = ""
    begin: str | None = msgspec.field(default=None, name="from")
    end: str | None = msgspec.field(default=None, name="to")


class FleetPage:
    """The page of one fleet. Raises ConfigError for a layer that cannot be drawn."""

    def __init__(self, fleet: Declaration, version: str, asker: Asker) -> None:
        self._asker = asker
        self._layers = {name: LayerText(name, source) for name, source in fleet.drawn_layers.items()}
        self._description = PageDescription(
            fleet.name,
            version,
            "live",
            (),
            _described(fleet),
            [DrawnLayer(name, f"/v1/layers/{name}") for name in fleet.drawn_layers],
        )
        self._files = _read_files()

    def routes(self) -> list[HttpRoute]:
        """Where it is."""
        return [
            HttpRoute("GET", "/", self._page, "", is_described=False),
            HttpRoute("GET", "/assets/{file}", self._asset, "", is_described=False),
            HttpRoute("GET", "/v1/page", self._describe, "read", is_described=False),
            HttpRoute("GET", "/v1/layers/{layer}", self._layer, "read", is_described=False),
        ]

    async def _page(self, call: HttpCall) -> HttpAnswer:
        return self._file("index.html", b"no-store")

    async def _asset(self, call: HttpCall) -> HttpAnswer:
        # The build puts a digest of its content into the name of each file.
        return self._file(f"assets/{call.parameters['file']}", b"public, max-age=31536000, immutable")

    def _file(self, name: str, kept: bytes) -> HttpAnswer:
        body = self._files.get(name)
        if body is None:
            raise DeniedRequest(404, f"there is no {name[:100]} in this version; load the page again")
        return HttpAnswer(body, type=TYPES[name.rpartition(".")[2]], headers=(*HEADERS, (b"cache-control", kept)))

    async def _describe(self, call: HttpCall) -> HttpAnswer:
        call.query(())
        mode, node, begin, end = "live", "", None, None
        with contextlib.suppress(NotRunning, Overloaded):  # The page says itself that nobody answers.
            span = await self._asker.ask(SpanRequest())
            mode, node, (begin, end) = span.mode, span.node, (_readable(one) for one in (span.first_ns, span.last_ns))
        scopes = call.caller.scopes if mode == "live" else tuple(one for one in call.caller.scopes if one == READ)
        found = msgspec.structs.replace(self._description, mode=mode, node=node, scopes=scopes, begin=begin, end=end)
        return json_answer(found)

    async def _layer(self, call: HttpCall) -> HttpAnswer:
        call.query(())
        layer = self._layers.get(call.parameters["layer"])
        if layer is None:
            names = ", ".join(self._layers) or "none"
            raise DeniedRequest(404, f"{call.parameters['layer'][:100]!r} is no layer here; there are {names}")
        text = layer.read()
        headers = ((b"etag", layer.tag), (b"cache-control", b"no-cache"))
        if call.headers.get(b"if-none-match") == layer.tag:
            return HttpAnswer(b"", 304, type=GEOJSON, headers=headers)
        return HttpAnswer(text, type=GEOJSON, headers=headers)


class LayerText:
    """The GeoJSON of a layer."""

    def __init__(self, name: str, source: LayerSource) -> None:
        """Reads it once, so that a wrong one is refused before anybody looks. Raises ConfigError."""
        self._name = name
        self._source = source
        self._text = b""
        self.tag = b""
        """Another one for each text, as the header ETag has it."""
        self._read_s = -LAYER_S
        self.read()

    def read(self) -> bytes:
        """As it is now. Raises ConfigError."""
        now_s = time.monotonic()
        if now_s - self._read_s >= LAYER_S:
            text = self._made()
            if text != self._text:
                self._text = self._checked(text)
                self.tag = b'"%b"' % blake3(text).digest(length=16).hex().encode()
            self._read_s = now_s
        return self._text

    def _made(self) -> bytes:
        source = self._source
        if callable(source):
            try:
                return msgspec.json.encode(source())
            except Exception as error:
                raise ConfigError(
                    f"layer {self._name!r}: its function raised {type(error).__name__}: {error}"
                ) from error
        path = Path(source)
        try:
            if path.stat().st_size > LAYER_BYTES_MAX:
                raise ConfigError(f"layer {self._name!r}: {path} is larger than {LAYER_BYTES_MAX} bytes; simplify it")
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(f"layer {self._name!r}: {path} cannot be read: {error.strerror}") from None

    def _checked(self, text: bytes) -> bytes:
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ConfigError(f"layer {self._name!r}: its GeoJSON cannot be read: {error}") from None
        if not isinstance(found, dict) or found.get("type") not in GEOMETRIES:
            raise ConfigError(f"layer {self._name!r}: this is no GeoJSON; give a FeatureCollection")
        return text


def _described(fleet: Declaration) -> list[DescribedKind]:
    numbers = {kind: number for number, kind in enumerate(fleet.map_layers)}
    found: list[DescribedKind] = []
    for kind, plan in fleet.plans.items():
        layer = fleet.map_layers.get(kind)
        drawn = None
        if layer is not None:
            drawn = DescribedLayer(numbers[kind], layer.plane, layer.heading is not None, layer.trail_s)
        commands = [DescribedMessage(one.__name__, schema_of(one)) for one in messages_of(plan, Command)]
        events = [DescribedMessage(one.__name__, schema_of(one)) for one in messages_of(plan, Event)]
        steps = {str(one.version): one.outline for one in fleet.workflows if one.kind == kind}
        found.append(DescribedKind(kind, commands, events, schema_of(plan.cls), drawn, steps))
    # The page numbers layers by the order of kinds with a map: let both orders be one.
    return sorted(found, key=lambda one: -1 if one.map is None else one.map.layer)


def _readable(time_ns: int | None) -> str | None:
    return None if time_ns is None else readable_time(time_ns)


def _read_files() -> Mapping[str, bytes]:
    """The page and its files, by their paths; empty in a checkout in which they were never built."""
    folder = files("stigmergy.serve").joinpath("web")
    found: dict[str, bytes] = {}
    if folder.is_dir():
        found = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
        assets = folder.joinpath("assets")
        if assets.is_dir():
            found |= {f"assets/{one.name}": one.read_bytes() for one in assets.iterdir() if one.is_file()}
    return found
