"""Assembles gateways: the leaf server of a site, and the buses of the fleet's node at, above and below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS
from stigmergy.app.keyring import SharedKey
from stigmergy.app.node_config import NodeConfig, open_bus
from stigmergy.app.signing import KnownNodes, node_signing
from stigmergy.base.clock import Clock
from stigmergy.base.errors import ConfigError, StigmergyError, StoreConflict, StoreUnavailable, StoreUnknown
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.bus.port import Bus
from stigmergy.bus.topics import escape
from stigmergy.nats import naming
from stigmergy.nats.gateway.leaf import Leaf, LeafPlan
from stigmergy.nats.servers.configuration import ServerTlsFiles
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import BusSettings
from stigmergy.pki.identity import AUTHORITIES, PAIR, check_identity
from stigmergy.store.port import KeyValue, Lease
from stigmergy.uplink.distributor import Distributor
from stigmergy.uplink.names import UplinkSource
from stigmergy.uplink.rules import UplinkRule

HUB_NODE = "hub"
LEASE_KEY = "collector"
LEASE_S = 3
RENEW_S = 0.75
RETRY_S = 2.0
RUN_BYTES = 8
NODE = "gateway"
"""What a gateway's node is called at its site, if nobody says otherwise."""


class GatewayPlan(Struct, frozen=True, kw_only=True):
    """A gateway, as it is asked for."""

    fleet: Declaration
    site: str
    folder: Path
    node: str = NODE
    hubs: tuple[str, ...] = ()
    hub_tls: ServerTlsFiles | None = None
    hub_replicas: int = 1
    rule: UplinkRule = UplinkRule()
    """What goes up."""
    host: str = "127.0.0.1"
    port: int = 0
    mqtt_port: int = 0
    leaf_port: int | None = None
    store_mb: int = 4_096
    bus: str = ""
    """The scheme of the node's own bus on the leaf: nats or mqtt."""
    ledger: str | None = None
    """Who orders what its agents claim; that of the configuration without it."""


def make_leaf(plan: GatewayPlan) -> Leaf:
    """The server of a gateway, not started."""
    return Leaf(
        LeafPlan(
            folder=plan.folder,
            site=plan.site,
            roots=topic_roots(plan.fleet),
            hubs=plan.hubs,
            hub_tls=plan.hub_tls,
            host=plan.host,
            port=plan.port,
            mqtt_port=plan.mqtt_port,
            leaf_port=plan.leaf_port,
            store_mb=plan.store_mb,
        )
    )


def topic_roots(fleet: Declaration) -> tuple[str, ...]:
    """The first levels of all topics that a fleet uses, where they are fixed: its own, and those of plain devices."""
    topics = [one.topic for one in fleet.device_events]
    topics += [one.topic for one in fleet.device_commands_taken]
    topics += [one.topic for one in fleet.device_orders]
    devices = (topic.levels[0] for topic in topics)
    return tuple(dict.fromkeys((escape(fleet.name), *(level for level in devices if level[0] not in "{+"))))


def node_config_of(plan: GatewayPlan, leaf: Leaf) -> NodeConfig:
    """Where the gateway's node is: on its leaf; above it the hub, below it gateways, where there are such."""
    options = {
        "at": ",".join(hub.rpartition("@")[2] for hub in plan.hubs),
        "gateway": leaf.identity.gateway,
        "host": socket.gethostname(),
        "replicas": str(plan.hub_replicas),
        "mirror": config_bucket(plan.fleet.name),
    }
    above = f"nats-hub://{leaf.address}?{urlencode(options, quote_via=quote)}"
    return NodeConfig(
        site_bus(plan, leaf),
        plan.site,
        plan.node,
        uplink=plan.rule if plan.hubs else None,
        collects=True,
        ledger=plan.ledger,
        uplink_to=above if plan.hubs else None,
        collect_from=None if plan.leaf_port is None else f"nats-sites://{leaf.address}",
    )


def site_bus(plan: GatewayPlan, leaf: Leaf) -> str:
    """The URL of the bus on the leaf."""
    if plan.bus == "mqtt":
        return f"mqtt://{leaf.mqtt_address}?reconnect_s_max=2"
    if plan.bus == "nats":
        return f"nats://{leaf.address}"
    raise ConfigError(f"bus {plan.bus!r}: a gateway's node is on its leaf by nats or mqtt")


def read_hubs(path: Path) -> list[str]:
    """Hubs from a file, one in each line: other users of a machine see what is on a command line."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a file with USER:PASSWORD@HOST:PORT in it") from None
    if not (found := [line for line in lines if line and not line.startswith("#")]):
        raise ConfigError(f"{path}: names no hub; write USER:PASSWORD@HOST:PORT into it, one in each line")
    return found


def hub_tls(ca: str | None, cert: str | None, key: str | None, identity: str | None = None) -> ServerTlsFiles | None:
    """What a gateway shows to a hub that wants TLS: these files, else its identity; None where nothing is given."""
    if bool(cert) != bool(key):
        raise ConfigError("a certificate and its key belong together; give both --hub-cert and --hub-key, or neither")
    if identity is not None and not ca and not cert:
        folder = check_identity(Path(identity).resolve())
        return ServerTlsFiles(str(folder / PAIR), str(folder / PAIR), str(folder / AUTHORITIES))
    return ServerTlsFiles(cert or "", key or "", ca or "") if ca or cert else None


async def drop_claim(plan: GatewayPlan, leaf: Leaf) -> None:
    """Has the hub forget which gateway had the site. Raises LinkDown if the hub is not there."""
    from stigmergy.nats.gateway.hub import forget_site

    await forget_site(leaf.address, plan.hubs, plan.site)


class HubPlan(Struct, frozen=True, kw_only=True):
    """Distributes, at a hub, what its sites send up to a fleet on workers."""

    fleet: Declaration
    url: str
    """The cluster: its sites, its store and the bus that its workers are on."""
    site: str = "local"
    """Where the workers are on the bus."""
    node: str = HUB_NODE
    key: Path | None = None
    """The key to sign with; without one it verifies what sites have signed, and signs nothing."""
    settings: BusSettings = BusSettings()
    peers: tuple[str, ...] = ()


class HubCollector:
    """Distributes while it has the lease; of several for one fleet one does, and the others wait."""

    def __init__(self, plan: HubPlan, tell: Callable[[str, str], None]) -> None:
        """`tell` hears what changes, as a word and a sentence."""
        self._plan = plan
        self._tell = tell
        self.distributor: Distributor | None = None

    async def run(self) -> None:
        """Until it is cancelled. Raises ConfigError for what somebody must mend."""
        from stigmergy.nats.store import open_store

        clock, name = SystemClock(), f"{socket.gethostname()}:{os.getpid()}"
        waits, store = False, None
        while store is None:
            try:
                store = await open_store(self._plan.url, clock)
            except StoreUnavailable as error:
                self._tell("local-only", str(error))
                await asyncio.sleep(RETRY_S)
        try:
            keys = await store.key_value(f"stig-uplinks-{naming.token(self._plan.fleet.name)}")
            while True:
                try:
                    lease = await keys.acquire(LEASE_KEY, name.encode(), LEASE_S)
                    if lease is not None:
                        await self._hand_out(keys, lease, clock)
                        waits = False
                    elif not waits:
                        waits = True
                        self._tell("waits", "another one distributes; this one takes over when that is gone")
                except (StoreUnavailable, StoreUnknown) as error:
                    self._tell("local-only", str(error))
                await asyncio.sleep(RENEW_S)
        finally:
            await store.close()

    async def _hand_out(self, keys: KeyValue, lease: Lease, clock: Clock) -> None:
        plan, entropy = self._plan, SystemEntropy()
        where = NodeConfig(plan.url, plan.site, plan.node, peers=plan.peers)
        bus = open_bus(where, plan.fleet.name, entropy)
        assert bus is not None
        signing = node_signing(
            where,
            plan.fleet.name,
            plan.settings,
            None if plan.key is None else SharedKey(plan.key),
            lambda: clock.monotonic_ns() / SECOND_NS,
            known=KnownNodes(None if plan.key is None else plan.key.with_name(f"{plan.key.name}-known")),
        )
        me, run = UplinkSource(plan.fleet.name, plan.site, plan.node), entropy.token(RUN_BYTES).hex()
        sites, bus = signing.wrap(_sites_of(plan), plan.url), signing.wrap(bus, plan.url)
        self.distributor = Distributor(sites, bus, keys, plan.fleet, me, run)
        try:
            await self.distributor.start()
            self._tell("hands-out", f"what sites send to {plan.fleet.name} goes to its workers")
            while lease.held(clock.monotonic_ns()):
                await asyncio.sleep(RENEW_S)
                with contextlib.suppress(StoreUnavailable, StoreUnknown):
                    await lease.renew()
        except StoreConflict:
            pass
        finally:
            await self.distributor.stop()
            self.distributor = None
            with contextlib.suppress(StigmergyError):
                await lease.release()
        self._tell("waits", "the lease was lost; another one may hand out")


def _sites_of(plan: HubPlan) -> Bus:
    from stigmergy.nats.address import parse_address
    from stigmergy.nats.gateway.sites_bus import SitesBus

    return SitesBus(parse_address(plan.url), f"{plan.fleet.name}:{plan.site}:{plan.node}")


def config_bucket(fleet: str) -> str:
    """The bucket, of keys and of objects, with which a hub tells its sites what to do. Gateways mirror it."""
    return f"stig-config-{naming.token(fleet)}"


__all__ = [
    "HUB_NODE",
    "NODE",
    "GatewayPlan",
    "HubCollector",
    "HubPlan",
    "Leaf",
    "config_bucket",
    "drop_claim",
    "hub_tls",
    "make_leaf",
    "node_config_of",
    "read_hubs",
    "site_bus",
]
