"""A gateway's own NATS server: a leaf of the hub with its own domain, restarted whenever it ends or hangs.

Everything is in one folder, which one gateway uses at a time: the gateway's identity, the server's data and its log.

    gateway.json     its id, its site, and whether the hub has given it the site
    gateway.lock     held while it runs
    leaf/            the server's configuration, log and data

Until the hub has granted it the site, the leaf does not answer for it: of two gateways with one name only one is right,
and the other must not be mistaken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import time
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.nats.gateway.hub import split_hub
from stigmergy.nats.gateway.subjects import check_site, kept_subjects
from stigmergy.nats.servers.configuration import ServerPlan, ServerTlsFiles
from stigmergy.nats.servers.server import LOOPBACK, NatsServer, find_program, free_ports

LOOK_S = 0.2
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
"""The longest pause before a restart; the pause doubles while the server does not live for LIVED_S."""
LIVED_S = 60.0
HEALTH_EVERY_S = 2.0
HUNG_S = 15.0
"""A running server that does not answer for this long is stopped and restarted."""
PING_EVERY_S = 5.0
ID_BYTES = 8
PID_FILE = "server.pid"
OLD_SERVER_S_MAX = 5.0
OLD_SERVER_LOOK_S = 0.02
"""How often we check whether the server of an earlier run has ended; after OLD_SERVER_S_MAX we end it."""
STORE_MB_MIN = 1_536
"""The streams of a bus may use 1,280; see `nats/bus/streams.py`."""
ANYWHERE = ("0.0.0.0", "::", "[::]")


class LeafPlan(Struct, frozen=True, kw_only=True):
    """Settings of a gateway's server. A port of 0 means any free port."""

    folder: Path
    site: str
    roots: tuple[str, ...]
    """First levels of the topics that stay at the site."""
    hubs: tuple[str, ...] = ()
    """host:port of the hub's leaf listeners, with user:password@ if needed; none for the top level."""
    hub_tls: ServerTlsFiles | None = None
    host: str = LOOPBACK
    """Where clients and devices connect."""
    port: int = 0
    mqtt_port: int = 0
    leaf_port: int | None = None
    """Where gateways of the level below connect; None for none."""
    tls: ServerTlsFiles | None = None
    store_mb: int = 4_096
    """The limit of the server's disk space."""


class GatewayIdentity(Struct, frozen=True):
    """A gateway's identity, kept in its folder."""

    gateway: str
    site: str
    is_known: bool = False
    """Whether the hub has given it the site."""


class Leaf:
    """The server of one gateway. Between `start` and `stop` it is restarted when it fails."""

    def __init__(self, plan: LeafPlan) -> None:
        check_plan(plan)
        self._plan = plan
        self._folder = plan.folder.resolve()
        self._lock = -1
        self._identity = GatewayIdentity("", plan.site)
        self._server: NatsServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._reopening = False
        self.restarts = 0
        self.trouble = ""
        """Why it does not run."""

    @property
    def identity(self) -> GatewayIdentity:
        return self._identity

    @property
    def server(self) -> NatsServer:
        """The server; only after `start`."""
        assert self._server is not None
        return self._server

    @property
    def address(self) -> str:
        """host:port for clients on this machine."""
        host = LOOPBACK if self._plan.host in ANYWHERE else self._plan.host
        return f"{host}:{self.server.plan.port}"

    @property
    def mqtt_address(self) -> str:
        """The same for MQTT."""
        return f"{self.address.rpartition(':')[0]}:{self.server.plan.mqtt_port}"

    async def start(self) -> None:
        """Starts the server; returns when it is ready. Raises ConfigError for what somebody must fix."""
        find_program()
        self._take_folder()
        try:
            self._identity = self._read_identity()
            await self._wait_old_server()
            self._server = NatsServer(self._server_plan(), self._folder / "leaf")
            # On this thread: the operating system ends the server together with the thread that started it.
            self._server.start()
            self._write_pid()
            await asyncio.to_thread(self._server.wait_ready)
        except BaseException:
            await self.stop()
            raise
        self._task = asyncio.get_running_loop().create_task(self._look_after(), name=f"leaf {self._plan.site}")

    async def stop(self) -> None:
        """Stops the server, and unlocks the folder."""
        task, self._task = self._task, None
        await end_tasks(task)
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def recognise(self) -> None:
        """The hub has given this gateway the site: from now on the leaf answers for it, also after a restart."""
        if not self._identity.is_known:
            self._identity = structs.replace(self._identity, is_known=True)
            self._write_identity()
            self._reopening = True

    # ------------------------------------------------------------------ supervision

    async def _look_after(self) -> None:
        pause_s, began_s, heard_s = PAUSE_S_MIN, time.monotonic(), time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            if now_s - heard_s > HEALTH_EVERY_S and await asyncio.to_thread(self.server.is_healthy):
                heard_s = now_s
            if self._reopening:
                self._reopening = False
                await asyncio.to_thread(self.server.stop)
                pause_s = 0.0
            elif self.server.is_running and now_s - heard_s < HUNG_S:
                continue
            elif self.server.is_running:
                self.trouble = f"the leaf server has not answered for {HUNG_S:g} s and is restarted"
                await asyncio.to_thread(self.server.kill)
            else:
                self.trouble = f"the leaf server has ended and is restarted: {self.server.log.strip()[-300:]}"
            pause_s = PAUSE_S_MIN if now_s - began_s > LIVED_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, max(PAUSE_S_MIN, 2 * pause_s))
            began_s = heard_s = time.monotonic()
            await self._start_again()

    async def _start_again(self) -> None:
        self.restarts += 1
        self.server.plan = self._server_plan(self.server.plan)
        try:
            self.server.start()
            self._write_pid()
            await asyncio.to_thread(self.server.wait_ready)
        except (StigmergyError, OSError) as error:
            self.trouble = str(error)
        else:
            self.trouble = ""

    # ------------------------------------------------------------------ its folder

    def _take_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "gateway.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise ConfigError(
                f"{self._folder}: another gateway runs on this folder; stop it, or give this one another --data"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self._folder}: cannot be used ({error.strerror}); give another --data") from None

    async def _wait_old_server(self) -> None:
        """The system ends the server of a killed gateway a moment later: two servers must not share a disk."""
        deadline_s = time.monotonic() + OLD_SERVER_S_MAX
        while pid := self._old_server():
            if time.monotonic() > deadline_s:
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(OLD_SERVER_LOOK_S)

    def _old_server(self) -> int:
        """The process id of a server that still runs on this folder; 0 if there is none."""
        try:
            pid = int((self._folder / "leaf" / PID_FILE).read_text(encoding="ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return 0
        return pid if str(self._folder / "leaf").encode() in command else 0

    def _write_pid(self) -> None:
        (self._folder / "leaf" / PID_FILE).write_text(str(self.server.pid), encoding="ascii")

    def _read_identity(self) -> GatewayIdentity:
        path = self._folder / "gateway.json"
        if not path.exists():
            self._identity = GatewayIdentity(secrets.token_hex(ID_BYTES), self._plan.site)
            self._write_identity()
            return self._identity
        try:
            found = msgspec.json.decode(path.read_bytes(), type=GatewayIdentity)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); restore it, or give another --data") from None
        if found.site != self._plan.site:
            raise ConfigError(
                f"{self._folder}: this is the folder of site {found.site}, not of {self._plan.site}; give --site "
                f"{found.site}, or another --data"
            )
        return found

    def _write_identity(self) -> None:
        path = self._folder / "gateway.json"
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self._identity))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def _server_plan(self, before: ServerPlan | None = None) -> ServerPlan:
        plan, domain = self._plan, self._plan.site
        own = kept_subjects(plan.roots)
        unknown = () if self._identity.is_known or not plan.hubs else (f"$JS.{domain}.API.>",)
        if before is not None:
            return structs.replace(before, kept_out=(*own, *unknown))
        free = iter(free_ports(4))
        ports = [given or next(free) for given in (plan.port, plan.mqtt_port)]
        leaf_port = 0 if plan.leaf_port is None else plan.leaf_port or next(free)
        for what, port in (("--port", plan.port), ("--mqtt-port", plan.mqtt_port), ("--leaf-port", plan.leaf_port)):
            if port:
                check_port(plan.host, port, what)
        return ServerPlan(
            # With the id: a hub disconnects the first of two leaves with one name.
            name=f"{domain}-{self._identity.gateway}",
            store=str(self._folder / "leaf" / "data"),
            host=plan.host,
            port=ports[0],
            http_host=LOOPBACK,
            http_port=next(free),
            mqtt_port=ports[1],
            mqtt_ack_wait_s=1,
            leaf_port=leaf_port,
            hubs=plan.hubs,
            hub_tls=plan.hub_tls,
            tls=plan.tls,
            kept_in=own,
            kept_out=(*own, *unknown),
            ping_every_s=PING_EVERY_S,
            domain=domain,
            file_bytes=plan.store_mb * 1024 * 1024,
        )


def check_plan(plan: LeafPlan) -> None:
    """Raises ConfigError for impossible settings."""
    check_site(plan.site)
    if plan.store_mb < STORE_MB_MIN:
        raise ConfigError(f"--store-mb {plan.store_mb}: give at least {STORE_MB_MIN}; buses and streams need that much")
    for hub in plan.hubs:
        split_hub(hub)


def check_port(host: str, port: int, what: str) -> None:
    """Raises ConfigError if another process listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of {host} is not available ({error.strerror}); stop its process, or give another {what}"
            ) from None
