"""Where a node is: the bus it is on, its site, its name; and what is opened for it there, by URL."""

from __future__ import annotations

import socket
from importlib.metadata import entry_points

from msgspec import Struct

from stigmergy.config import Config
from stigmergy.core.errors import ConfigError
from stigmergy.core.uplink import UplinkRule
from stigmergy.ports.bus import Bus
from stigmergy.ports.clock import Entropy
from stigmergy.runtime.topics import safe_node_name

BUSES = "stigmergy.buses"
"""The entry point group of buses: the name is the scheme of the URL, the value opens it."""


class Bearings(Struct, frozen=True):
    """Where a node is: the bus it is on, its site, its name."""

    bus: str | None = None
    site: str | None = None
    node: str | None = None
    uplink: UplinkRule | None = None
    collects: bool = False


def find_bearings(given: Bearings, config: Config) -> Bearings:
    """What was given, else what the configuration says, else the defaults."""
    place = config.fleet
    bus, uplink, collects = given.bus or place.bus, given.uplink or place.uplink, given.collects or place.collects
    if bus is None and (uplink is not None or collects):
        raise ConfigError('uplink and collects need a bus; give one, for example bus = "mqtt://gateway:1883"')
    return Bearings(
        bus,
        given.site or place.site or "local",
        given.node or place.node or safe_node_name(socket.gethostname()),
        uplink,
        collects,
    )


def open_bus(bearings: Bearings, fleet: str, entropy: Entropy) -> Bus | None:
    """The bus that a URL names, through the adapter registered for its scheme, not yet connected; None without one."""
    if bearings.bus is None:
        return None
    scheme, colon, _ = bearings.bus.partition(":")
    found = {entry.name: entry for entry in entry_points(group=BUSES)}
    if not colon or scheme not in found:
        known = ", ".join(f"{name}:" for name in sorted(found))
        raise ConfigError(
            f"bus {bearings.bus!r}: no adapter for {scheme!r}; there are {known}, for example mqtt://gateway:1883"
        )
    # No name has a colon, so no two nodes of different names have one id: they would take each other's session.
    client_id = f"{fleet}:{bearings.site}:{bearings.node}"
    bus: Bus = found[scheme].load()(bearings.bus, client_id, entropy)
    return bus
