"""Plans for the servers of a cluster: on hosts of their own, or side by side on this machine. Pure.

Passwords and ports are arguments: whoever calls draws them.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from msgspec import Struct

from stigmergy.adapters.nats.configuration import ServerPlan, TlsFiles, User
from stigmergy.core.errors import ConfigError

HOSTS_MAX = 9
PORT, CLUSTER_PORT, LEAF_PORT, HTTP_PORT, MQTT_PORT = 4222, 6222, 7422, 8222, 1883
LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"
HUB = "hub"
"""The domain of a cluster's JetStream: gateways tell it from their own by it."""
FLEET, GATEWAY, DEVICE, SYSTEM = "fleet", "gateway", "device", "system"
USERS = (FLEET, GATEWAY, DEVICE, SYSTEM)
NOT_FOR_DEVICES = ("$JS.>", "$KV.>", "$O.>", "$SYS.>", "stig.>")
"""What devices have no business with: streams, buckets, and what workers say to each other."""
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


class Passwords(Struct, frozen=True):
    """Of the users, and of the servers among themselves."""

    fleet: str
    gateway: str
    device: str
    system: str
    routes: str


class Place(Struct, frozen=True):
    """A host that a server is to run on, as the command line names it."""

    host: str
    port: int

    @property
    def shift(self) -> int:
        """All ports of a server are as far from the usual ones as that of its clients."""
        return self.port - PORT


def parse_hosts(text: str) -> list[Place]:
    """hub-1,hub-2,hub-3 or with ports. Raises ConfigError for what cannot be a cluster, with the reason."""
    places: list[Place] = []
    for name in (part.strip() for part in text.split(",")):
        found = _HOST.fullmatch(name)
        port = int((found and found[2]) or PORT)
        if found is None or not 0 < port + max(CLUSTER_PORT, LEAF_PORT, HTTP_PORT) - PORT < 65536:
            raise ConfigError(f"{name!r} is no host; give names or addresses with commas, like hub-1,hub-2,hub-3")
        place = Place(found[1], port)
        if place in places:
            raise ConfigError(f"{name} is named twice; each server needs a host, or at least a port, of its own")
        places.append(place)
    if len(places) == 2:
        raise ConfigError(
            "two hosts have no majority once one of them is gone, and so survive no loss: name three, or one to begin "
            "with; the third may be a small machine"
        )
    if len(places) > HOSTS_MAX:
        raise ConfigError(f"{len(places)} hosts: at most {HOSTS_MAX}; more of them make every write slower, not safer")
    return places


def plan_hosts(
    places: list[Place],
    *,
    cluster: str,
    store: str,
    passwords: Passwords,
    tls: TlsFiles | None = None,
    has_mqtt: bool = True,
    file_bytes: int = 8 * 1024**3,
) -> list[ServerPlan]:
    """A server on each of these hosts."""
    routes = tuple(f"{place.host}:{CLUSTER_PORT + place.shift}" for place in places)
    names = server_names(places)
    return [
        ServerPlan(
            name=name,
            store=store if len({one.host for one in places}) == len(places) else f"{store}/{name}",
            host=place.host if place.host.startswith("127.") else ALL_ADDRESSES,
            advertised="" if place.host.startswith("127.") else place.host,
            port=place.port,
            http_port=HTTP_PORT + place.shift,
            http_host=LOOPBACK,
            cluster=cluster if len(places) > 1 else "",
            cluster_port=CLUSTER_PORT + place.shift,
            routes=routes if len(places) > 1 else (),
            leaf_port=LEAF_PORT + place.shift,
            domain=HUB,
            mqtt_port=MQTT_PORT + place.shift if has_mqtt else 0,
            file_bytes=file_bytes,
            users=users_of(passwords),
            tls=tls,
            route_password=passwords.routes,
        )
        for place, name in zip(places, names, strict=True)
    ]


def server_names(places: list[Place]) -> list[str]:
    """What the servers are called: as their hosts, and where two share one, with the port."""
    hosts = [place.host.strip("[]").replace(":", "-") for place in places]
    return [
        host if hosts.count(host) == 1 else f"{host}-{place.port}" for host, place in zip(hosts, places, strict=True)
    ]


def users_of(passwords: Passwords) -> tuple[User, ...]:
    """Who may connect: workers and tools, gateways, devices, and whoever looks after the servers."""
    return (
        User(FLEET, passwords.fleet),
        User(GATEWAY, passwords.gateway),
        User(DEVICE, passwords.device, denied=NOT_FOR_DEVICES, only_by=("MQTT",)),
        User(SYSTEM, passwords.system, is_system=True),
    )


def urls_of(
    plans: list[ServerPlan], passwords: Passwords, tls: TlsFiles | None, replicas: int | None = None
) -> dict[str, str]:
    """Where each kind of client connects, passwords included. Streams have three replicas, where nothing else is said
    and there are as many servers."""
    scheme, devices = ("nats", "mqtt") if tls is None else ("tls", "mqtts")
    query = f"?replicas={replicas or min(3, len(plans) if len(plans) % 2 else len(plans) - 1)}"

    def at(user: str, password: str, port: str) -> str:
        hosts = ",".join(f"{plan.advertised or plan.host}:{getattr(plan, port)}" for plan in plans)
        return f"{user}:{quote(password, safe='')}@{hosts}"

    urls = {
        FLEET: f"{scheme}://{at(FLEET, passwords.fleet, 'port')}{query}",
        GATEWAY: f"{scheme}://{at(GATEWAY, passwords.gateway, 'leaf_port')}",
        SYSTEM: f"{scheme}://{at(SYSTEM, passwords.system, 'port')}",
    }
    if plans[0].mqtt_port:
        urls[DEVICE] = f"{devices}://{at(DEVICE, passwords.device, 'mqtt_port')}"
    return urls


def plan_local(folder: str, ports: list[dict[str, int]], passwords: Passwords) -> list[ServerPlan]:
    """Servers side by side on loopback, where who gives no name is one of the fleet."""
    routes = tuple(f"{LOOPBACK}:{own['cluster']}" for own in ports) if len(ports) > 1 else ()
    return [
        ServerPlan(
            name=f"n{number}",
            store=f"{folder}/n{number}",
            port=own["client"],
            http_port=own["http"],
            cluster="local" if routes else "",
            cluster_port=own["cluster"],
            routes=routes,
            leaf_port=own["leaf"],
            domain=HUB,
            mqtt_port=own["mqtt"],
            users=users_of(passwords),
            open_to=FLEET,
            route_password=passwords.routes if routes else "",
        )
        for number, own in enumerate(ports, start=1)
    ]
