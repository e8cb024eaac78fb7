"""What a URL says about a mesh over UDP: udp://host:port?peers=name@host:port,…. Reads no more than the key file."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from stigmergy.core.errors import ConfigError
from stigmergy.ports.mesh import BYTES_MIN, CONTACT_BYTES_MAX, PACKET_BYTES, is_node_name

SCHEME = "udp"
PORT = 7946
KEY_BYTES_MIN = 32
KEY_BYTES_MAX = 4096
BODY_BYTES_MAX = 60_000
"""What the option bytes_max may be: more does not fit into a packet of UDP."""
PEERS_COUNT_MAX = 10_000

Address = tuple[str, int]


class UdpOptions(Struct, frozen=True):
    """What a URL says about this node's socket and its peers."""

    host: str
    port: int = PORT
    peers: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of each."""
    key: bytes = b""
    bytes_max: int = PACKET_BYTES
    advertise: str = ""

    @property
    def place(self) -> str:
        """How messages name it."""
        return f"udp://{_written(self.host, self.port)}"


def parse_url(url: str) -> UdpOptions:
    """The options that a URL names; raises ConfigError that says which part is wrong. Reads no more than the key."""
    try:
        parts = urlsplit(url)
        port = PORT if parts.port is None else parts.port
    except ValueError as error:
        raise ConfigError(f"mesh {url!r}: {error}") from None
    if parts.scheme != SCHEME or not parts.hostname:
        raise ConfigError(f"mesh {url!r}: write udp://host:{PORT}?peers=name@host:{PORT},…; 0.0.0.0 is all addresses")
    if parts.username is not None or parts.path not in ("", "/") or parts.fragment:
        raise ConfigError(f"mesh {url!r}: udp://host:port has no user, path or fragment; take them out")
    given: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in given:
            raise ConfigError(f"mesh {url!r}: option {name!r} is there twice")
        given[name] = value
    options = UdpOptions(
        host=parts.hostname,
        port=port,
        peers=_peers(given.pop("peers", ""), url),
        key=_key(given.pop("key_file", ""), url),
        bytes_max=_bytes_max(given.pop("bytes_max", ""), url),
        advertise=given.pop("advertise", ""),
    )
    if given:
        raise ConfigError(
            f"mesh {url!r}: unknown option {next(iter(given))!r}; there are peers, key_file, bytes_max, advertise"
        )
    if options.advertise and read_contact(options.advertise) is None:
        raise ConfigError(f"mesh {url!r}: advertise={options.advertise}; write an address and a port, 10.0.0.7:{PORT}")
    return options


def _peers(text: str, url: str) -> tuple[tuple[str, str, int], ...]:
    found: dict[str, tuple[str, str, int]] = {}
    for item in filter(None, text.split(",")):
        name, at, place = item.partition("@")
        if not at or not is_node_name(name):
            raise ConfigError(f"mesh {url!r}: the peer {item!r}; write name@host:{PORT}")
        if name in found:
            raise ConfigError(f"mesh {url!r}: the peer {name!r} is there twice")
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"mesh {url!r}: the peer {item!r}: {error}") from None
        if not host or port == 0 or parts.path or parts.username is not None:
            raise ConfigError(f"mesh {url!r}: the peer {item!r}; write name@host:{PORT}")
        found[name] = (name, host, port or PORT)
    if len(found) > PEERS_COUNT_MAX:
        raise ConfigError(f"mesh {url!r}: {len(found)} peers, at most {PEERS_COUNT_MAX}; with a key, a few are enough")
    return tuple(found.values())


def _key(file: str, url: str) -> bytes:
    if not file:
        return b""
    try:
        with Path(file).open("rb") as opened:
            key = opened.read(KEY_BYTES_MAX).strip()
    except OSError as error:
        raise ConfigError(f"mesh {url!r}: key_file: {error}") from None
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"mesh {url!r}: key_file has {len(key)} bytes; put {KEY_BYTES_MIN} random ones or more into it"
        )
    return key


def _bytes_max(text: str, url: str) -> int:
    if not text:
        return PACKET_BYTES
    if not text.isdecimal() or not BYTES_MIN <= int(text) <= BODY_BYTES_MAX:
        raise ConfigError(f"mesh {url!r}: bytes_max={text}; it must be {BYTES_MIN} to {BODY_BYTES_MAX}")
    return int(text)


def read_contact(contact: str) -> Address | None:
    """An address and a port, if that is what it is. No names of hosts: to look them up would take time."""
    if len(contact) > CONTACT_BYTES_MAX:
        return None
    try:
        parts = urlsplit(f"//{contact}")
        host, port = parts.hostname, parts.port
        if not host or not port or parts.path or parts.query or parts.username is not None:
            return None
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return None


def contact_of(bound: tuple[object, ...]) -> str:
    host, port = str(bound[0]), int(str(bound[1]))
    return "" if ipaddress.ip_address(host.partition("%")[0]).is_unspecified else _written(host, port)


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_from(family: int, host: str) -> str:
    """An address as a socket of this family has it: one of IPv6 sees those of IPv4 in a form of its own."""
    address = ipaddress.ip_address(host)
    is_mapped = family == socket.AF_INET6 and address.version == 4
    return f"::ffff:{address}" if is_mapped else str(address)


def is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
