"""Where a node is: its bus, mesh and ledger, its site and its name; and what is opened for it there, by URL."""

from __future__ import annotations

import socket
from importlib.metadata import entry_points
from typing import Any

from msgspec import Struct

from stigmergy.config import Config
from stigmergy.core.errors import ConfigError
from stigmergy.core.uplink import UplinkRule
from stigmergy.ports.bus import Bus
from stigmergy.ports.clock import Clock, Entropy
from stigmergy.ports.ledger import Ledger
from stigmergy.ports.mesh import Mesh
from stigmergy.runtime.topics import safe_node_name

BUSES = "stigmergy.buses"
"""The entry point group of buses: the name is the scheme of the URL, the value opens it."""
MESHES = "stigmergy.meshes"
LEDGERS = "stigmergy.ledgers"


class Bearings(Struct, frozen=True):
    """Where a node is: the bus it is on, its site, its name."""

    bus: str | None = None
    site: str | None = None
    node: str | None = None
    uplink: UplinkRule | None = None
    collects: bool = False
    mesh: str | None = None
    ledger: str | None = None
    peers: tuple[str, ...] = ()


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
        given.mesh or place.mesh,
        given.ledger or place.ledger,
        given.peers or place.peers,
    )


def open_bus(bearings: Bearings, fleet: str, entropy: Entropy) -> Bus | None:
    """The bus that a URL names, through the adapter registered for its scheme, not yet connected; None without one."""
    if bearings.bus is None:
        return None
    adapter = _adapter("bus", BUSES, bearings.bus, "mqtt://gateway:1883")
    # No name has a colon, so no two nodes of different names have one id: they would take each other's session.
    client_id = f"{fleet}:{bearings.site}:{bearings.node}"
    bus: Bus = adapter(bearings.bus, client_id, entropy)
    return bus


def open_mesh(bearings: Bearings, clock: Clock) -> Mesh | None:
    """The mesh that a URL names, not yet listening; None without one."""
    if bearings.mesh is None:
        return None
    adapter = _adapter("mesh", MESHES, bearings.mesh, "udp://0.0.0.0:7946?peers=north@10.0.0.7:7946")
    mesh: Mesh = adapter(bearings.mesh, bearings.node, clock)
    return mesh


def open_ledger(bearings: Bearings, fleet: str) -> Ledger | None:
    """The ledger that a URL names; None without one."""
    if bearings.ledger is None:
        return None
    ledger: Ledger = _adapter("ledger", LEDGERS, bearings.ledger, "sqlite:ledger.db")(bearings.ledger, fleet)
    return ledger


def _adapter(what: str, group: str, url: str, example: str) -> Any:
    """What opens such a URL, by its scheme."""
    scheme, colon, _ = url.partition(":")
    found = {entry.name: entry for entry in entry_points(group=group)}
    if not colon or scheme not in found:
        known = ", ".join(f"{name}:" for name in sorted(found)) or "none"
        raise ConfigError(f"{what} {url!r}: no adapter for {scheme!r}; there are {known}, for example {example}")
    return found[scheme].load()
