"""Whether the broker can be reached: its name, and a connection to its port. How the servers of a NATS cluster stand.

No password is shown, and nothing is changed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qsl, urlsplit

from stigmergy.cli.health.finding import Finding, ill, well, worry
from stigmergy.core.errors import StigmergyError

CONNECT_S_MAX = 3.0
PORTS = {"mqtt": 1883, "mqtts": 8883, "nats": 4222, "tls": 4222, "redis": 6379, "kafka": 9092}
INSIDE = ("memory",)
CLUSTERED = ("nats", "tls")
ENCRYPTED = {"mqtt": "mqtts", "nats": "tls"}
"""What a scheme is called with TLS."""


def check_bus(url: str | None) -> Iterator[Finding]:
    """The bus of the configuration."""
    if url is None:
        yield well("bus.configured", "no bus is configured; agents here need none")
        return
    scheme = url.partition(":")[0]
    if scheme in INSIDE:
        yield well("bus.configured", f"a bus inside this process ({scheme}:)")
        return
    for one in _servers(url):
        host, port, secret = _target(one, scheme)
        if not host or port is None:
            what = f"the URL of the bus ({scheme}:…) names no host and port"
            yield ill("bus.configured", what, "write it like mqtt://gateway:1883 under [fleet] in stigmergy.toml")
            return
        if scheme in ENCRYPTED and secret and host not in ("localhost", "127.0.0.1", "::1"):
            what = f"a password goes to {host} as it is, for everybody on the way to read"
            yield worry("bus.secrecy", what, f"use {ENCRYPTED[scheme]}:// with TLS")
        yield check_reachable(host, port)


def check_clusters(urls: Sequence[str | None]) -> Iterator[Finding]:
    """How the servers behind these URLs stand, each asked about itself; those of NATS only, and each cluster once."""
    from stigmergy.cli.standing import look_once
    from stigmergy.engine import parse_address
    from stigmergy.engine.checking import check

    seen: list[tuple[str, ...]] = []
    for url in urls:
        if url is None or url.partition("://")[0] not in CLUSTERED:
            continue
        try:
            # What else the URL says is for the adapter that it was written for.
            address = parse_address(url, tuple(dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))))
            if address.servers in seen:
                continue
            seen.append(address.servers)
            findings = check(look_once(address, ""))
        except StigmergyError as error:
            yield ill("cluster.servers", str(error), "start the servers, or mend the URL in stigmergy.toml")
            continue
        for one in findings:
            yield Finding(f"cluster.{one.check}", one.level, one.what, one.remedy, {"at": address.shown})


def _servers(url: str) -> list[str]:
    """A URL for each server: those of one cluster on NATS are named in one, with commas."""
    scheme, _, rest = url.partition("://")
    if scheme not in CLUSTERED:
        return [url]
    login, at, hosts = rest.partition("?")[0].partition("/")[0].rpartition("@")
    return [f"{scheme}://{login}{at}{host}" for host in hosts.split(",") if host] or [url]


def _target(url: str, scheme: str) -> tuple[str | None, int | None, bool]:
    """Host, port, and whether there is a password in the URL."""
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or PORTS.get(scheme), parts.password is not None
    except ValueError:
        return None, None, False


def check_reachable(host: str, port: int) -> Finding:
    """Looks the name up and connects."""
    began_s = time.monotonic()
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S_MAX):
            took_s = time.monotonic() - began_s
    except socket.gaierror:
        return ill("bus.reachable", f"{host} has no address here", "mend the name, or the name service", at=where)
    except TimeoutError:
        remedy = "look at firewalls and routes; agents go on without it, and what they publish waits"
        return ill("bus.reachable", f"{where} does not answer within {CONNECT_S_MAX:.0f} s", remedy, at=where)
    except OSError as error:
        remedy = "start the broker there, or mend the address; agents go on without it, and what they publish waits"
        return ill("bus.reachable", f"{where}: {error.strerror or error}", remedy, at=where)
    return well("bus.reachable", f"{where} answers, in {took_s * 1e3:.0f} ms", at=where, seconds=round(took_s, 4))
