"""The plan of a NATS server and the text of its configuration. Pure. Its comments say what durability depends on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from msgspec import Struct

from stigmergy.base.errors import ConfigError
from stigmergy.pki.holders import HolderList
from stigmergy.pki.identity import AUTHORITIES, PAIR
from stigmergy.pki.names import Subject, server_uri

MAX_PAYLOAD_BYTES = 1024 * 1024
LOOK_SUBJECT = "$SYS.REQ.SERVER.PING.JSZ"
"""Every server answers it with the state of its JetStream."""
HEALTH_SUBJECT = "$SYS.REQ.SERVER.PING.HEALTHZ"
"""Every server answers it with its health."""
DURABLE_LINES = (
    (
        "sync_interval: always",
        "without it a server acknowledges a message, and syncs its disk up to two minutes later: a power failure of "
        "all servers would lose acknowledged events",
    ),
    (
        "routes:",
        "all servers in each of them: a message is stored once a majority has it, so three survive the loss of one, "
        "five of two; two servers survive none",
    ),
    (
        "store_dir:",
        "a separate disk that survives a restart, never tmpfs and never two servers on one: its loss is the loss of "
        "one replica",
    ),
    (
        "server_name:",
        "other servers identify its replicas by its name: keep it, and its store_dir, through every upgrade",
    ),
    (
        "max_file:",
        "a full store refuses new messages and loses nothing; leave more room than this on the disk",
    ),
)
"""The lines of a configuration that durability depends on, and why."""
MQTT_ACK_WAIT_S = 10
MQTT_ACK_PENDING_MAX = 1_024
"""For each subscription. nats-server allows 65,535 for all of a session: 63 subscriptions."""


class ServerTlsFiles(Struct, frozen=True):
    """A server's certificate, and the authority of the clients that it accepts."""

    cert: str
    key: str
    ca: str = ""
    maps: bool = False
    """Whether clients are the users that their certificates name, and need no password."""


class User(Struct, frozen=True):
    """Who may connect. Without any users, everybody may."""

    name: str
    password: str = ""
    """Empty for one who shows a certificate."""
    is_system: bool = False
    """In the system account: may inspect servers and remove lost ones."""
    denied: tuple[str, ...] = ()
    """Subjects that it may neither publish nor subscribe to."""
    only_by: tuple[str, ...] = ()
    """How it may connect, such as MQTT or LEAFNODE; any way if empty."""


class ServerPlan(Struct, frozen=True, kw_only=True):
    """One server. A port of 0 is not opened, except the clients'."""

    name: str
    store: str
    """The folder with its data."""
    host: str = "127.0.0.1"
    port: int = 4222
    http_port: int = 0
    http_host: str = ""
    """Where monitoring listens, if not with the clients."""
    cluster: str = ""
    """The name of its cluster; empty for a single server."""
    cluster_port: int = 0
    routes: tuple[str, ...] = ()
    """host:port of every server of the cluster."""
    is_behind_proxies: bool = False
    """For tests of cut links: the server advertises no ports, so that others connect through their `routes`."""
    leaf_port: int = 0
    """Where leaf servers connect."""
    hubs: tuple[str, ...] = ()
    """For a leaf: host:port of the hub's leaf ports, with user:password@ if needed."""
    kept_in: tuple[str, ...] = ()
    """For a leaf: subjects that do not cross to the hub."""
    kept_out: tuple[str, ...] = ()
    """For a leaf: subjects that do not come in from the hub."""
    hub_tls: ServerTlsFiles | None = None
    """For a leaf: its certificate for a hub with TLS, and the authority that it trusts."""
    ping_every_s: float = 0.0
    """The ping interval of idle connections; after three missed pings a connection ends. 0: the server's default."""
    domain: str = ""
    mqtt_port: int = 0
    mqtt_ack_wait_s: float = MQTT_ACK_WAIT_S
    sync_always: bool = True
    memory_bytes: int = 256 * 1024 * 1024
    file_bytes: int = 8 * 1024 * 1024 * 1024
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    advertised: str = ""
    """The host name that others use, if it listens on all addresses."""
    users: tuple[User, ...] = ()
    open_to: str = ""
    """The user of clients that give no name. Use it on loopback only."""
    tls: ServerTlsFiles | None = None
    users_file: str = ""
    """The file with the users instead, beside the configuration: it can change while the server runs."""
    route_user: str = ""
    """What the certificates of the other servers name, where certificates say who somebody is."""
    route_password: str = ""
    """Shared by the servers of a cluster; set it if others can reach the cluster port."""
    has_jetstream: bool = True
    tags: tuple[str, ...] = ()
    """Such as `zone:north`: streams can be spread over them."""


def write_configuration(plan: ServerPlan) -> str:
    """The text of a server's configuration file."""
    lines = [
        f"# {plan.name}: a NATS server for stigmergy, as `stigmergy cluster config` writes it.",
        "",
        "# Every server needs a unique name, and keeps it: the others identify its replicas by it.",
        f"server_name: {_text(plan.name)}",
        f"listen: {_text(f'{plan.host}:{plan.port}')}",
    ]
    if plan.advertised:
        lines += ["# The address of this server that clients of the others are told."]
        lines += [f"client_advertise: {_text(f'{plan.advertised}:{plan.port}')}"]
    if plan.http_port:
        lines += ["# For `stigmergy status`, and for your monitoring. It needs no password: do not expose it."]
        lines += [f"http: {_text(f'{plan.http_host or plan.host}:{plan.http_port}')}"]
    if plan.tags:
        lines += [f"server_tags: [{', '.join(_text(tag) for tag in plan.tags)}]"]
    lines += [
        "# Commits of stigmergy are smaller. A larger limit lets one client use more memory.",
        f"max_payload: {plan.max_payload_bytes}",
    ]
    if plan.ping_every_s:
        lines += ["# A hanging connection is closed after three of these.", f'ping_interval: "{plan.ping_every_s:g}s"']
    if plan.has_jetstream:
        lines += _jetstream(plan)
    if plan.tls is not None:
        lines += ["", f"tls {{ {_tls(plan.tls)} }}"]
    if plan.users_file:
        lines += ["", "# Who may connect, by certificate. `stigmergy cluster users` writes it anew; then: kill -HUP"]
        lines += [f"include {_text(plan.users_file)}"]
    elif plan.users:
        lines += _accounts(plan)
    if plan.cluster:
        lines += _cluster(plan)
    if plan.leaf_port or plan.hubs:
        lines += _leafnodes(plan)
    if plan.mqtt_port:
        tls = "" if plan.tls is None else f", tls {{ {_tls(plan.tls)} }}"
        lines += [
            "",
            "# Devices connect here by MQTT. Messages that they do not acknowledge in this time are sent again.",
            f'mqtt {{ listen: {_text(f"{plan.host}:{plan.mqtt_port}")}, ack_wait: "{plan.mqtt_ack_wait_s:g}s", '
            f"max_ack_pending: {MQTT_ACK_PENDING_MAX}{tls} }}",
        ]
    return "\n".join(lines) + "\n"


def _jetstream(plan: ServerPlan) -> list[str]:
    lines = [
        "",
        "jetstream {",
        "    # On a separate disk that survives a restart. If it is lost, this server's replicas are lost.",
        f"    store_dir: {_text(plan.store)}",
        f"    max_mem: {plan.memory_bytes}",
        "    # A full store refuses writes: nothing is lost, but the fleet stops deciding. Monitor it.",
        f"    max_file: {plan.file_bytes}",
    ]
    if plan.sync_always:
        lines += [
            "    # DURABILITY: without this line the server acknowledges a message, and syncs it up to two minutes",
            "    # later. If a majority loses power at once, acknowledged messages are lost. Leave it.",
            "    sync_interval: always",
        ]
    else:
        lines += ["    # Syncs every two minutes: acknowledged messages may be lost with the power of a majority."]
    if plan.domain:
        why = (
            "A leaf works by itself while the hub is away: that needs a separate domain."
            if plan.hubs
            else "Gateways distinguish this JetStream from their own by its domain."
        )
        lines += [f"    # {why}"]
        lines += [f"    domain: {_text(plan.domain)}"]
    return [*lines, "}"]


def _cluster(plan: ServerPlan) -> list[str]:
    login = f"stigmergy:{plan.route_password}@" if plan.route_password else ""
    routes = ", ".join(_text(f"nats-route://{login}{route}") for route in plan.routes)
    lines = ["", "cluster {", f"    name: {_text(plan.cluster)}"]
    lines += [f"    listen: {_text(f'{plan.host}:{plan.cluster_port}')}"]
    if plan.advertised:
        lines += [f"    cluster_advertise: {_text(f'{plan.advertised}:{plan.cluster_port}')}"]
    if plan.tls is not None and plan.tls.ca:
        lines += [
            "    # Each server shows its certificate to the others: it must be valid for clients and for servers."
        ]
        lines += [f"    tls {{ {_tls(plan.tls)} }}"]
    if plan.route_user:
        lines += [f"    authorization {{ user: {_text(plan.route_user)} }}"]
    elif plan.route_password:
        lines += [f"    authorization {{ user: stigmergy, password: {_text(plan.route_password)} }}"]
    lines += ["    # DURABILITY: name all servers here, in each of them. Three survive the loss of one, five of two."]
    return [*lines, f"    routes: [{routes}]", "}"]


def _leafnodes(plan: ServerPlan) -> list[str]:
    lines = ["", "leafnodes {"]
    if plan.leaf_port:
        lines += [f"    listen: {_text(f'{plan.host}:{plan.leaf_port}')}", "    no_advertise: true"]
        lines += [] if plan.tls is None else [f"    tls {{ {_tls(plan.tls)} }}"]
    if plan.hubs:
        remotes = ", ".join(_text(f"nats-leaf://{hub}") for hub in plan.hubs)
        remote = [f"urls: [{remotes}]"]
        if plan.hub_tls is not None:
            remote += [f"tls {{ {_remote_tls(plan.hub_tls)} }}"]
        for name, subjects in (("deny_exports", plan.kept_in), ("deny_imports", plan.kept_out)):
            if subjects:
                remote += [f"{name}: [{', '.join(_text(subject) for subject in subjects)}]"]
        if plan.kept_in or plan.kept_out:
            lines += ["    # Messages of a site stay there; a separate stream carries what goes up."]
        lines += ["    reconnect: 1s", f"    remotes: [{{ {', '.join(remote)} }}]"]
    return [*lines, "}"]


def _accounts(plan: ServerPlan) -> list[str]:
    open_to = [f"no_auth_user: {_text(plan.open_to)}"] if plan.open_to else []
    if not any(one.is_system for one in plan.users):
        return ["", "authorization {", "    users = [", *_users(plan.users, 8), "    ]", "}", *open_to]
    return [*_two_accounts(plan.users, plan.has_jetstream), *open_to]


def write_users(users: Sequence[User]) -> str:
    """The text of a file of users. It names accounts even if there is no user: nobody may connect then."""
    return "\n".join(["# Written by stigmergy from the list of its authority.", *_two_accounts(users, True)]) + "\n"


def _two_accounts(users: Sequence[User], has_jetstream: bool) -> list[str]:
    system, others = [one for one in users if one.is_system], [one for one in users if not one.is_system]
    jetstream = ["        jetstream: enabled"] if has_jetstream else []
    looks = [_text(LOOK_SUBJECT), _text(HEALTH_SUBJECT)]
    imports = ", ".join(f"{{service: {{account: SYS, subject: {look}}}}}" for look in looks)
    exports = ", ".join(f"{{service: {look}, response_type: stream, accounts: [FLEET]}}" for look in looks)
    return [
        "",
        "accounts {",
        "    FLEET: {",
        *jetstream,
        "        users: [",
        *_users(others, 12),
        "        ]",
        "        # Lets `stigmergy status` inspect every server without the password of the system account.",
        f"        imports: [{imports}]",
        "    }",
        "    # May inspect servers and remove one that is lost for good; nobody else needs it.",
        "    SYS: {",
        "        users: [",
        *_users(system, 12),
        "        ]",
        f"        exports: [{exports}]",
        "    }",
        "}",
        "system_account: SYS",
    ]


def _users(users: Sequence[User], indent: int) -> list[str]:
    return [" " * indent + _user(user) for user in users]


def _user(user: User) -> str:
    parts = [f"user: {_text(user.name)}"]
    if user.password:
        parts += [f"password: {_text(user.password)}"]
    if user.denied:
        denied = f"{{deny: [{', '.join(_text(subject) for subject in user.denied)}]}}"
        parts += [f"permissions: {{publish: {denied}, subscribe: {denied}}}"]
    if user.only_by:
        parts += [f"allowed_connection_types: [{', '.join(_text(way) for way in user.only_by)}]"]
    return f"{{{', '.join(parts)}}}"


def _tls(files: ServerTlsFiles) -> str:
    how = "verify_and_map" if files.maps else "verify"
    checked = f", ca_file: {_text(files.ca)}, {how}: true" if files.ca else ""
    return f"cert_file: {_text(files.cert)}, key_file: {_text(files.key)}{checked}"


def _remote_tls(files: ServerTlsFiles) -> str:
    own = [f"cert_file: {_text(files.cert)}", f"key_file: {_text(files.key)}"] if files.cert else []
    return ", ".join([*own, *([f"ca_file: {_text(files.ca)}"] if files.ca else [])])


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Plans for the servers of a cluster: one per host, or side by side on this machine. Pure. Passwords and ports are
# arguments: the caller draws them.

HOSTS_MAX = 9
PORT, CLUSTER_PORT, LEAF_PORT, HTTP_PORT, MQTT_PORT = 4222, 6222, 7422, 8222, 1883
LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"
HUB = "hub"
"""The JetStream domain of a cluster, which distinguishes it from the gateways' own."""
FLEET, GATEWAY, DEVICE, SYSTEM = "fleet", "gateway", "device", "system"
USERS_FILE = "users.conf"
LOOPBACK_HOSTS = (LOOPBACK, "localhost", "::1")
OPERATOR, ROOT = "operator", "root"
"""Who commands a secure cluster, and who administers its servers: identities in its folder."""
NOT_FOR_DEVICES = ("$JS.>", "$KV.>", "$O.>", "$SYS.>", "stig.>")
"""Subjects that devices must not use: streams, buckets, and messages between workers."""
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


class Passwords(Struct, frozen=True):
    """Of the users, and between the servers."""

    fleet: str
    gateway: str
    device: str
    system: str
    routes: str


class Secured(Struct, frozen=True):
    """Servers that know everybody by certificate."""

    fleet: str
    """Of their authority."""
    folder: str
    """Where the identities of the servers are, each in a folder of its name; or one, if all hosts call it the same."""
    is_shared: bool = False

    @property
    def route_user(self) -> str:
        return server_uri(self.fleet)

    def files(self, name: str) -> ServerTlsFiles:
        """The files of one of them."""
        own = self.folder if self.is_shared else f"{self.folder}/{name}"
        return ServerTlsFiles(f"{own}/{PAIR}", f"{own}/{PAIR}", f"{own}/{AUTHORITIES}", maps=True)


class ServerHost(Struct, frozen=True):
    """A host for a server, as given on the command line."""

    host: str
    port: int

    @property
    def shift(self) -> int:
        """All ports of a server are this far from the default ones."""
        return self.port - PORT


def parse_hosts(text: str) -> list[ServerHost]:
    """Parses hub-1,hub-2,hub-3, or with ports. Raises ConfigError with the reason."""
    places: list[ServerHost] = []
    for name in (part.strip() for part in text.split(",")):
        found = _HOST.fullmatch(name)
        port = int((found and found[2]) or PORT)
        if found is None or not 0 < port + max(CLUSTER_PORT, LEAF_PORT, HTTP_PORT) - PORT < 65536:
            raise ConfigError(f"{name!r} is not a host; give names or addresses with commas, like hub-1,hub-2,hub-3")
        place = ServerHost(found[1], port)
        if place in places:
            raise ConfigError(f"{name} is named twice; each server needs its own host, or at least its own port")
        places.append(place)
    if len(places) == 2:
        raise ConfigError(
            "two hosts have no majority when one is gone, so they survive no loss: name three, or one to begin "
            "with; the third may be a small machine"
        )
    if len(places) > HOSTS_MAX:
        raise ConfigError(f"{len(places)} hosts: at most {HOSTS_MAX}; more of them make every write slower, not safer")
    return places


def plan_hosts(
    places: list[ServerHost],
    *,
    cluster: str,
    store: str,
    passwords: Passwords,
    tls: ServerTlsFiles | None = None,
    has_mqtt: bool = True,
    file_bytes: int = 8 * 1024**3,
    secured: Secured | None = None,
) -> list[ServerPlan]:
    """A server on each of these hosts. With `secured` everybody shows a certificate, and passwords are of no use."""
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
            users=() if secured else users_of(passwords),
            users_file=USERS_FILE if secured else "",
            tls=secured.files(name) if secured else tls,
            route_user=secured.route_user if secured else "",
            route_password="" if secured else passwords.routes,
        )
        for place, name in zip(places, names, strict=True)
    ]


def server_names(places: list[ServerHost]) -> list[str]:
    """Servers are named after their hosts; with the port if two share one."""
    hosts = [place.host.strip("[]").replace(":", "-") for place in places]
    return [
        host if hosts.count(host) == 1 else f"{host}-{place.port}" for host, place in zip(hosts, places, strict=True)
    ]


def users_of(passwords: Passwords) -> tuple[User, ...]:
    """The users: workers and tools, gateways, devices, and administrators of the servers."""
    return (
        User(FLEET, passwords.fleet),
        User(GATEWAY, passwords.gateway),
        User(DEVICE, passwords.device, denied=NOT_FOR_DEVICES, only_by=("MQTT",)),
        User(SYSTEM, passwords.system, is_system=True),
    )


def users_of_certificates(holders: HolderList, now_s: float) -> tuple[User, ...]:
    """The users of servers that know clients by certificate: who is on the list, not revoked, and not over. Servers are
    no users: they know each other."""
    found: list[User] = []
    for name, holder in sorted(holders.members.items()):
        if holder.revoked_s or holder.until_s < now_s:
            continue
        uri = Subject(holders.fleet, holder.kind, name).uri
        match holder.kind:
            case "node" | "person":
                found.append(User(uri))
            case "device":
                found.append(User(uri, denied=NOT_FOR_DEVICES, only_by=("MQTT",)))
            case "admin":
                found.append(User(uri, is_system=True))
            case _:
                pass
    return tuple(found)


def urls_of(
    plans: list[ServerPlan], passwords: Passwords, tls: ServerTlsFiles | None, replicas: int | None = None
) -> dict[str, str]:
    """Where each kind of client connects, passwords included. Streams have three replicas by default if there are that
    many servers."""
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


def plan_local(
    folder: str, ports: list[dict[str, int]], passwords: Passwords, secured: Secured | None = None
) -> list[ServerPlan]:
    """Servers on loopback, where clients without a name belong to the fleet; or everybody shows a certificate."""
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
            users=() if secured else users_of(passwords),
            open_to="" if secured else FLEET,
            route_password=passwords.routes if routes and not secured else "",
            route_user=secured.route_user if routes and secured else "",
            users_file=USERS_FILE if secured else "",
            tls=secured.files(f"n{number}") if secured else None,
        )
        for number, own in enumerate(ports, start=1)
    ]
