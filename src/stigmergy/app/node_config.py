"""Where a node runs: its bus, mesh and ledger, its site and its name; and what is opened for it there, by URL."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, structs

from stigmergy.app.config import Config
from stigmergy.app.ledgers import SCHEMES as ON_NATS
from stigmergy.base.clock import Clock, Entropy
from stigmergy.base.errors import ConfigError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import Bus
from stigmergy.bus.topics import Topics, safe_node_name
from stigmergy.claims.port import LedgerPort
from stigmergy.ledgers.service import ledger_name
from stigmergy.membership.mesh import Mesh
from stigmergy.network.bus_link import Levels
from stigmergy.network.registry import QUIET_S, Registry
from stigmergy.network.remote_ledger import gateways_of
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import TraceSettings
from stigmergy.pki.identity import with_identity
from stigmergy.store.port import KeyValue, Objects, Store
from stigmergy.traces.exporter import SpanExporter
from stigmergy.uplink.rules import UplinkRule

BUSES = "stigmergy.buses"
"""The entry point group of buses: the name is the scheme of the URL, the value opens it."""
MESHES = "stigmergy.meshes"
LEDGERS = "stigmergy.ledgers"
STORES = "stigmergy.stores"
FOLDER = "folder:"
MQTT_SESSION_S = {"mqtt": 0, "mqtts": 0}
URLS = ("bus", "ledger", "uplink_to", "collect_from", "blobs", "views", "models", "policy")
NO_SESSION_S = {**MQTT_SESSION_S, "nats": 1, "tls": 1}
"""How long a broker is to keep the session of a client that only looks, in seconds, by the scheme of its URL."""
QUIET_MEMORY_S = 0.02


class NodeConfig(Struct, frozen=True):
    """Where a node is: the bus it is on, its site, its name."""

    bus: str | None = None
    site: str | None = None
    node: str | None = None
    uplink: UplinkRule | None = None
    collects: bool = False
    mesh: str | None = None
    ledger: str | None = None
    peers: tuple[str, ...] = ()
    uplink_to: str | None = None
    """The bus that the uplink leaves by, if it is another one."""
    collect_from: str | None = None
    """A further bus, that uplinks of whole sites come in by."""
    copies: tuple[str, ...] = ()
    """Stores that the journal is copied to."""
    blobs: str | None = None
    """The store of large payloads."""
    views: str | None = None
    """Where the rows of views are kept."""
    models: str | None = None
    """Where the bundles of models are."""
    model_keys: tuple[str, ...] = ()
    """Keys whose bundles are believed."""
    policy: str | None = None
    """Where the fleet's policy is; without it nobody is asked."""
    policy_keys: tuple[str, ...] = ()
    """Keys whose policies are believed."""
    take_over: bool = False
    """Run agents that another node claims on the bus: that node is gone for good."""


def find_node_config(given: NodeConfig, config: Config) -> NodeConfig:
    """What was given, else what the configuration says, else the defaults."""
    place = config.fleet
    bus, uplink, collects = given.bus or place.bus, given.uplink or place.uplink, given.collects or place.collects
    uplink_to, collect_from = given.uplink_to or place.uplink_to, given.collect_from or place.collect_from
    if bus is None and (uplink is not None or collects or collect_from is not None):
        raise ConfigError(
            'uplink, collects and collect_from need a bus; give one, for example bus = "mqtt://gateway:1883"'
        )
    if uplink_to is not None and uplink is None:
        raise ConfigError(
            'uplink_to is set without an uplink; say what goes up, for example uplink = { only = ["Alert"] }'
        )
    node_config = NodeConfig(
        bus,
        given.site or place.site or "local",
        given.node or place.node or safe_node_name(socket.gethostname()),
        uplink,
        collects,
        given.mesh or place.mesh,
        given.ledger or place.ledger,
        given.peers or place.peers,
        uplink_to,
        collect_from,
        given.copies or ((place.copies,) if isinstance(place.copies, str) else place.copies),
        given.blobs or place.blobs,
        given.views or place.views,
        given.models or place.models,
        given.model_keys or place.model_keys,
        given.policy or place.policy,
        given.policy_keys or place.policy_keys,
        given.take_over,
    )
    shows = {name: with_identity(url, place.identity) for name in URLS if (url := getattr(node_config, name))}
    return structs.replace(
        node_config, copies=tuple(with_identity(url, place.identity) for url in node_config.copies), **shows
    )


def open_bus(node_config: NodeConfig, fleet: str, entropy: Entropy) -> Bus | None:
    """The bus that a URL names, through the adapter registered for its scheme, not yet connected; None without one."""
    return _open_bus(node_config.bus, node_config, fleet, entropy)


def make_registry(
    node_config: NodeConfig, fleet: str, agents: Sequence[str], entropy: Entropy, wrap: Callable[[Bus, str], Bus]
) -> Registry:
    """What looks for nodes with the agents or the name of this one, before it connects. `wrap` signs and verifies."""
    url, node = node_config.bus or "", node_config.node or ""
    without = re.sub(r"(?<=[?&])session_s=[^&]*&?", "", url)
    looking = structs.replace(node_config, bus=without_session(without, NO_SESSION_S))

    def open_client(name: str) -> Bus:
        found = open_bus(structs.replace(looking, node=name or f"{node}:start"), fleet, entropy)
        assert found is not None
        return wrap(found, url)

    topics, in_memory = Topics(fleet, node_config.site or ""), url.startswith("memory:")
    return Registry(
        open_client,
        topics,
        node,
        agents,
        quiet_s=QUIET_MEMORY_S if in_memory else QUIET_S,
        drops_sessions=not in_memory,
        take_over=node_config.take_over,
    )


def without_session(url: str, seconds: Mapping[str, int] = MQTT_SESSION_S) -> str:
    """The same broker, which is to keep nothing for a client that has left, or hardly anything."""
    kept_s = seconds.get(urlsplit(url).scheme)
    return url if kept_s is None or "session_s=" in url else f"{url}{'&' if '?' in url else '?'}session_s={kept_s}"


def open_levels(node_config: NodeConfig, fleet: str, entropy: Entropy, wrap: Callable[[Bus, str], Bus]) -> Levels:
    """The buses to the levels above and below, where a node has such."""
    opened: list[Bus | None] = []
    for url in (node_config.uplink_to, node_config.collect_from):
        bus = _open_bus(url, node_config, fleet, entropy)
        opened.append(None if bus is None or url is None else wrap(bus, url))
    return Levels(*opened)


def _open_bus(url: str | None, node_config: NodeConfig, fleet: str, entropy: Entropy) -> Bus | None:
    if url is None:
        return None
    adapter = _adapter("bus", BUSES, url, "mqtt://gateway:1883")
    # No name has a colon, so no two nodes of different names have one id: they would take each other's session.
    client_id = f"{fleet}:{node_config.site}:{node_config.node}"
    bus: Bus = adapter(url, client_id, entropy)
    return bus


def open_mesh(node_config: NodeConfig, clock: Clock) -> Mesh | None:
    """The mesh that a URL names, not yet listening; None without one."""
    if node_config.mesh is None:
        return None
    adapter = _adapter("mesh", MESHES, node_config.mesh, "udp://0.0.0.0:7946?peers=north@10.0.0.7:7946")
    mesh: Mesh = adapter(node_config.mesh, node_config.node, clock)
    return mesh


def open_ledger(node_config: NodeConfig, fleet: str, *, look: bool = True) -> LedgerPort | None:
    """The ledger that a URL names; None without one. Without `look` servers are asked later: to wait for them here
    would block the event loop."""
    url = node_config.ledger
    if url is None or gateways_of(url):
        return None
    ledger: LedgerPort = _ledger_opener(url, look=look)(url, fleet)
    return ledger


def _ledger_opener(url: str, *, look: bool) -> Any:
    opener = _adapter("ledger", LEDGERS, url, "sqlite:ledger.db")
    return opener if look or not url.startswith(ON_NATS) else partial(opener, look=False)


def open_ledgers(
    node_config: NodeConfig, fleet: str, names: Sequence[str], *, look: bool = True
) -> dict[str, LedgerPort]:
    """The logs of the ledgers that a fleet lists: each is one of its own, beside that of claims. None without a ledger,
    and where gateways are asked for it."""
    url = node_config.ledger
    if url is None or gateways_of(url):
        return {}
    opener = _ledger_opener(url, look=look)
    return {name: opener(place_of_ledger(url, name), ledger_name(fleet, name)) for name in names}


def ledgers_at(url: str, fleet: Declaration) -> list[tuple[str, str]]:
    """The place and the name of each log that a fleet has at the URL of a ledger: that of claims, and its own."""
    claims = [(url, fleet.name)] if any(plan.ordered for plan in fleet.plans.values()) else []
    return [*claims, *((place_of_ledger(url, name), ledger_name(fleet.name, name)) for name in fleet.ledgers)]


def place_of_ledger(url: str, name: str) -> str:
    """Where a ledger of this name is: in a file beside that of claims, in a stream beside theirs."""
    place, question, options = url.partition("?")
    scheme, _, path = place.partition(":")
    if scheme == "sqlite":
        stem, dot, ending = path.rpartition(".")
        return f"sqlite:{stem}.{name}.{ending}" if dot and "/" not in ending else f"{place}.{name}"
    if scheme == "memory":
        return f"{place}.{name}"
    address, slash, key = place.partition("://")[2].partition("/")
    return f"{scheme}://{address}/{key}.{name}{question}{options}" if slash and key else url


def open_exporter(settings: TraceSettings, fleet: str, instance: str) -> SpanExporter | None:
    """Who sends spans to the collector that the settings name; None without one."""
    if not settings.export:
        return None
    return SpanExporter(settings.export, settings.headers, fleet, instance, settings.queue_count_max)


def check_store(url: str) -> None:
    """Refuses a URL that no store has."""
    _adapter("store", STORES, url, "nats://hub:4222")


async def open_store(url: str, clock: Clock) -> Store:
    """Connects to the store that a URL names."""
    store: Store = await _adapter("store", STORES, url, "nats://hub:4222")(url, clock)
    return store


class BundleStore:
    """The store that bundles come from, opened when somebody needs it, and once; none where they are in a folder."""

    def __init__(self, url: str | None, bucket: str, clock: Clock) -> None:
        self._url = url or FOLDER
        self._bucket = bucket
        self._clock = clock
        self._opening: asyncio.Task[Store] | None = None

    @property
    def is_store(self) -> bool:
        """Whether there is one."""
        return not self._url.startswith(FOLDER)

    async def open_keys(self) -> KeyValue:
        """Which versions are wanted."""
        return await (await self._opened()).key_value(self._bucket)

    async def open_objects(self) -> Objects:
        """The bundles."""
        return await (await self._opened()).objects(self._bucket)

    async def _opened(self) -> Store:
        """All who need it at once wait for one connection, and hear of one failure."""
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = self._opening = asyncio.ensure_future(open_store(self._url, self._clock))
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Ends the connection."""
        opening, self._opening = self._opening, None
        await end_tasks(opening)
        if opening is not None and not opening.cancelled() and not opening.exception():
            await opening.result().close()


def _adapter(what: str, group: str, url: str, example: str) -> Any:
    """What opens such a URL, by its scheme."""
    scheme, colon, _ = url.partition(":")
    found = {entry.name: entry for entry in entry_points(group=group)}
    if not colon or scheme not in found:
        known = ", ".join(f"{name}:" for name in sorted(found)) or "none"
        raise ConfigError(f"{what} {shown(url)!r}: no adapter for {scheme!r}; there are {known}, for example {example}")
    try:
        return found[scheme].load()
    except ModuleNotFoundError as error:
        extra = "nats" if error.name == "nats" else scheme
        raise ConfigError(
            f'{what} {url!r}: the package {error.name!r} is not installed; pip install "stigmergy[{extra}]"'
        ) from None


def shown(url: str) -> str:
    """A URL for people: what it says before an @ may be a password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else url
