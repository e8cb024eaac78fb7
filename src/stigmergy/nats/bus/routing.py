"""Which stream has the messages of a pattern: our fleet's, another fleet's, or one that listens to the same devices.

A subject belongs to one stream, so a listener reads captured messages there. The stream of a fleet captures the topics
of that fleet; it is made if no node of that fleet has made it yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError
from stigmergy.nats.bus.options import BusOptions
from stigmergy.nats.bus.streams import ensure_streams, ensure_subjects
from stigmergy.nats.bus.subjects import STORED_GROUPS, is_covered
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import BUS_STREAMS, bus_stream, text_of
from stigmergy.nats.streams import StreamFound, find_stream

WILDCARDS = ("*", ">")


class Route(Struct, frozen=True):
    """Filters that are read from one fleet's stream."""

    fleet: str
    filters: list[str]
    found: StreamFound

    @property
    def stream(self) -> str:
        return bus_stream(self.fleet)


def fleet_of(subject: str) -> str | None:
    """The fleet whose stream captures this topic's subject; None if it does not look like a fleet's."""
    levels = subject.split(".")
    if len(levels) < 4 or levels[0] in WILDCARDS or levels[2] not in STORED_GROUPS:
        return None
    return unquote(levels[0])


async def route(link: NatsLink, options: BusOptions, filters: Iterable[str]) -> tuple[list[Route], dict[str, str]]:
    """The streams that have these filters, our own first; and the refused filters, each with the reason. Raises
    LinkDown or JetStreamRefused."""
    by_fleet: dict[str, list[str]] = {options.fleet: []}
    for one in filters:
        by_fleet.setdefault(await _home(link, options, one), []).append(one)
    routes: list[Route] = []
    refused: dict[str, str] = {}
    for fleet, own in by_fleet.items():
        if fleet == options.fleet:
            found = await _capture(link, options, own, refused)
        else:
            found = await find_others(link, options, fleet)
        routes.append(Route(fleet, [one for one in own if one not in refused], found))
    return routes, refused


async def _capture(link: NatsLink, options: BusOptions, filters: list[str], refused: dict[str, str]) -> StreamFound:
    # A filter that begins with a wildcard gets what is captured anyway, and widens nothing.
    named = [one for one in filters if one.partition(".")[0] not in WILDCARDS]
    try:
        return await ensure_subjects(link, options, named)
    except ConfigError:
        for one in named:  # one by one, so that one refusal does not affect the others
            try:
                await ensure_subjects(link, options, [one])
            except ConfigError as error:
                refused[one] = str(error)
        return await ensure_subjects(link, options, [])


async def find_others(link: NatsLink, options: BusOptions, fleet: str) -> StreamFound:
    """The stream of another fleet, whatever its settings."""
    found = await find_stream(link, bus_stream(fleet))
    return found or await ensure_streams(link, structs.replace(options, fleet=fleet, topics=()))


async def _home(link: NatsLink, options: BusOptions, one: str) -> str:
    fleet = fleet_of(one)
    if fleet is not None or one.partition(".")[0] in WILDCARDS:
        return fleet or options.fleet
    names = (await link.api("STREAM.NAMES", {"subject": one})).get("streams") or []
    for name in names:
        others = await find_stream(link, name) if name.startswith(BUS_STREAMS) else None
        if others is not None and is_covered(one, others.config["subjects"]):
            return text_of(name.removeprefix(BUS_STREAMS))
    return options.fleet
