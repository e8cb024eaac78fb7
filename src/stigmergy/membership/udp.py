"""The mesh over UDP: one socket, one datagram for each body. docs/formats.md has its bytes, docs/membership.md its use.

    udp://10.0.0.7:7946?peers=gateway@10.0.0.1:7946,drone-8@10.0.0.8:7946&key_file=mesh.key

Trust. Without a key: a datagram must come from the exact address that is listed for its sender's name, and it sends
only to listed nodes. Anybody on the path can forge addresses: use it within one machine or a network that you trust.
With a key (32 bytes or more, the same for the whole fleet): a datagram must have a seal, a keyed BLAKE3 over everything
in it, and any sender with a valid seal is trusted, listed or not. Addresses are then learned: from a node's own
datagrams, newest first (a growing stamp distinguishes a replayed datagram from a new one), and by introduction from
others until the node itself was heard. A listed address always wins. Bodies are not encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
import struct
from collections import deque
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from blake3 import blake3
from msgspec import Struct

from stigmergy.base.clock import Clock
from stigmergy.base.errors import Bug, ConfigError, Malformed
from stigmergy.base.tasks import end_tasks
from stigmergy.membership.mesh import (
    BYTES_MIN,
    CONTACT_BYTES_MAX,
    NODE_NAME_BYTES_MAX,
    PACKET_BYTES,
    Hear,
    MeshCounters,
    check_datagram,
    is_node_name,
)

# The bytes of a UDP datagram: sender, receiver, time, and a seal. docs/formats.md describes them. No I/O.

MAGIC = b"stgm"
FORMAT = 1
SEALED = 1
"""The kind of a datagram with a seal; 0 without."""
SEAL_BYTES = 16
HEADER_BYTES_MAX = 14 + 2 * (1 + NODE_NAME_BYTES_MAX) + SEAL_BYTES
_CONTEXT = "stigmergy 2026 seal of a datagram"
_FRONT = struct.Struct(">4sBBQ")


def seal_key(secret: bytes) -> bytes:
    """Derives the key of the seals from the key file's contents."""
    return blake3(secret, derive_key_context=_CONTEXT).digest()


def write_datagram(sender: str, to: str, body: bytes, stamp: int, key: bytes) -> bytes:
    """Encodes a datagram; `key` is the derived one, empty for none."""
    front = _FRONT.pack(MAGIC, FORMAT, SEALED if key else 0, stamp)
    names = b"".join(bytes([len(name)]) + name.encode() for name in (sender, to))
    plain = front + names + body
    return plain + blake3(plain, key=key).digest(SEAL_BYTES) if key else plain


def read_datagram(datagram: bytes, key: bytes) -> tuple[str, str, bytes, int]:
    """Sender, receiver, body and stamp. Raises Malformed for anything not written with this key."""
    if len(datagram) < _FRONT.size + 4:
        raise Malformed("too short for a datagram")
    magic, number, kind, stamp = _FRONT.unpack_from(datagram)
    if magic != MAGIC or number != FORMAT or kind != (SEALED if key else 0):
        raise Malformed("not our datagram, or of another format, or with another kind of seal")
    end = len(datagram)
    if key:
        end -= SEAL_BYTES
        seal = blake3(datagram[:end], key=key).digest(SEAL_BYTES) if end > _FRONT.size else b""
        if not hmac.compare_digest(seal, datagram[end:]):
            raise Malformed("the seal does not cover these bytes")
    names: list[str] = []
    place = _FRONT.size
    for _ in range(2):
        length = datagram[place] if place < end else 0
        name = datagram[place + 1 : place + 1 + length].decode("ascii", "replace")
        place += 1 + length
        if place > end or not is_node_name(name):
            raise Malformed("the name of a node is missing or invalid")
        names.append(name)
    return names[0], names[1], datagram[place:end], stamp


def body_bytes(datagram: bytes) -> int:
    """The size of the body of one of our datagrams."""
    first = datagram[_FRONT.size]
    second = datagram[_FRONT.size + 1 + first]
    return len(datagram) - _FRONT.size - 2 - first - second - (SEAL_BYTES if datagram[5] == SEALED else 0)


# Options of a mesh URL: udp://host:port?peers=name@host:port,…. Reads only the key file.

SCHEME = "udp"
PORT = 7946
KEY_BYTES_MIN = 32
KEY_BYTES_MAX = 4096
BODY_BYTES_MAX = 60_000
"""The bound of the option bytes_max: more does not fit into a UDP packet."""
PEERS_COUNT_MAX = 10_000

Address = tuple[str, int]


class UdpOptions(Struct, frozen=True):
    """The URL's settings of this node's socket and its peers."""

    host: str
    port: int = PORT
    peers: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of each."""
    key: bytes = b""
    bytes_max: int = PACKET_BYTES
    advertise: str = ""

    @property
    def place(self) -> str:
        """The mesh as error texts name it."""
        return f"udp://{_written(self.host, self.port)}"


def parse_url(url: str) -> UdpOptions:
    """Parses a URL; raises ConfigError that names the wrong part. Reads only the key file."""
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
            raise ConfigError(f"mesh {url!r}: option {name!r} is given twice")
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
            raise ConfigError(f"mesh {url!r}: the peer {name!r} is given twice")
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
    """Parses an address and a port; None for anything else. No host names: a lookup would take time."""
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
    """An address as a socket of this family sees it: IPv6 has its own form of IPv4 addresses."""
    address = ipaddress.ip_address(host)
    is_mapped = family == socket.AF_INET6 and address.version == 4
    return f"::ffff:{address}" if is_mapped else str(address)


def is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


LEARNED_COUNT_MAX = 10_000
"""Learned addresses. Beyond it the one that was silent for longest is forgotten."""
LEARNED_S = 600.0
"""An address that was silent for this long may be replaced by an introduction."""
RESOLVE_S = 60.0
"""How often listed host names are looked up."""
WAITING_COUNT_MAX = 1_024
"""Datagrams that the system does not accept now. Beyond it the oldest is dropped."""
READ_AT_ONCE_MAX = 64
"""Datagrams that are read before other tasks get a turn."""
RECEIVE_BUFFER_BYTES = 1024 * 1024
"""The receive buffer that we ask the system for; it may give less."""


class _Learned(Struct):
    """The address where a node was last heard, or was introduced."""

    address: Address
    stamp: int = 0
    """Of the newest datagram; 0 for an introduction."""
    heard_ns: int = 0


class UdpMesh:
    """The Mesh port over one UDP socket."""

    def __init__(self, options: UdpOptions, node: str, clock: Clock) -> None:
        if not is_node_name(node):
            raise ConfigError(f"node {node!r}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
        self.node = node
        self.bytes_max = options.bytes_max
        self.seeds = tuple(name for name, _, _ in options.peers if name != node)
        """The nodes that membership contacts first: the listed ones."""
        self.counters = MeshCounters()
        self._options = options
        self._clock = clock
        self._key = seal_key(options.key) if options.key else b""
        self._listed: dict[str, Address | None] = {name: None for name, _, _ in options.peers if name != node}
        """Addresses of the listed nodes; None while a host name is not resolved."""
        self.seeds = tuple(self._listed)
        self._learned: dict[str, _Learned] = {}
        self._socket: socket.socket | None = None
        self._hear: Hear | None = None
        self._was_opened = False
        self._stamp = 0
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._resolving: asyncio.Task[None] | None = None
        self._contact = ""

    @property
    def contact(self) -> str:
        """The address that others are told: the option advertise, or that of the socket if it is a single one."""
        return self._contact

    # Start and stop.

    async def open(self, hear: Hear) -> None:
        """Binds the socket. Host names are resolved in the background: until then datagrams to them are dropped."""
        if self._was_opened:
            raise Bug(f"the mesh of {self.node} was opened before; make another one")
        self._was_opened = True
        loop = asyncio.get_running_loop()
        place = self._options.place
        try:
            found = await loop.getaddrinfo(self._options.host, self._options.port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, address = found[0]
            opened = socket.socket(family, kind, protocol)
        except OSError as error:
            raise ConfigError(f"mesh {place}: {error}; give an address of this machine") from None
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            opened.bind(address)
        except OSError as error:
            opened.close()
            raise ConfigError(f"mesh {place}: {error}; is another node there? choose another port") from None
        self._socket = opened
        self._hear = hear
        # Stamps of this run are higher than those of earlier ones, unless the clock went back.
        self._stamp = max(1, self._clock.wall_ns())
        self._contact = self._options.advertise or contact_of(opened.getsockname())
        for name, host, port in self._options.peers:
            if name != self.node and is_literal(host):
                self._listed[name] = reached_from(opened.family, host), port
        loop.add_reader(opened, self._read)
        if not all(is_literal(host) for _, host, _ in self._options.peers):
            self._resolving = loop.create_task(self._keep_resolving(opened.family), name=f"peers of {self.node}")

    async def close(self) -> None:
        self._was_opened = True
        self._hear = None
        resolving, self._resolving = self._resolving, None
        await end_tasks(resolving)
        opened, self._socket = self._socket, None
        if opened is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(opened)
            loop.remove_writer(opened)
            opened.close()
        self.counters.dropped_count += len(self._waiting)
        self._waiting.clear()

    async def _keep_resolving(self, family: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for name, host, port in self._options.peers:
                if name == self.node or is_literal(host):
                    continue
                with contextlib.suppress(OSError):
                    mapped = socket.AI_V4MAPPED if family == socket.AF_INET6 else 0
                    found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM, flags=mapped)
                    self._listed[name] = (str(found[0][4][0]), int(found[0][4][1]))
            await asyncio.sleep(RESOLVE_S)

    # Sending.

    def send_nowait(self, to: str, body: bytes) -> None:
        """Gives a datagram to the system, or queues it for a moment if the system accepts none."""
        check_datagram(to, body, self.bytes_max)
        address = self._address_of(to)
        if self._socket is None or address is None or to == self.node:
            self.counters.dropped_count += 1
            return
        self._stamp += 1
        datagram = write_datagram(self.node, to, body, self._stamp, self._key)
        if self._waiting or not self._sent(datagram, address):
            if not self._waiting:
                asyncio.get_running_loop().add_writer(self._socket, self._write)
            elif len(self._waiting) >= WAITING_COUNT_MAX:
                self._waiting.popleft()
                self.counters.overflowed_count += 1
            self._waiting.append((datagram, address))

    def introduce(self, node: str, contact: str) -> None:
        """Uses the hint if there is a key, and nothing better is known."""
        address = read_contact(contact)
        if not self._key or node == self.node or not is_node_name(node) or node in self._listed or address is None:
            return
        known = self._learned.get(node)
        if known is None or self._clock.monotonic_ns() - known.heard_ns > LEARNED_S * 1e9:
            family = socket.AF_INET if self._socket is None else self._socket.family
            address = reached_from(family, address[0]), address[1]
            self._learn(node, _Learned(address, 0, self._clock.monotonic_ns()))

    def _address_of(self, node: str) -> Address | None:
        listed = self._listed.get(node)
        if listed is not None:
            return listed
        learned = self._learned.get(node)
        return None if learned is None else learned.address

    def _sent(self, datagram: bytes, address: Address) -> bool:
        """Whether this datagram was sent, or dropped for good. False: the system accepts none now."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(datagram, address)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.counters.dropped_count += 1  # no route, or no permission
        else:
            self.counters.sent_count += 1
            self.counters.sent_bytes += body_bytes(datagram)
        return True

    def _write(self) -> None:
        while self._waiting:
            if not self._sent(*self._waiting[0]):
                return
            self._waiting.popleft()
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket)

    # Receiving.

    def _read(self) -> None:
        for _ in range(READ_AT_ONCE_MAX):
            if self._socket is None:  # the handler closed it
                return
            try:
                datagram, source = self._socket.recvfrom(self.bytes_max + HEADER_BYTES_MAX + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an error that some earlier datagram caused
            self._take(datagram, (str(source[0]), int(source[1])))

    def _take(self, datagram: bytes, source: Address) -> None:
        try:
            sender, to, body, stamp = read_datagram(datagram, self._key)
        except Malformed:
            self.counters.refused_count += 1
            return
        is_ours = to == self.node and sender != self.node and len(body) <= self.bytes_max
        if self._hear is None or not is_ours or not (self._key or self._listed.get(sender) == source):
            self.counters.refused_count += 1
            return
        if self._key and sender not in self._listed:
            self._note(sender, source, stamp)
        self.counters.received_count += 1
        self.counters.received_bytes += len(body)
        try:
            self._hear(sender, body)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"mesh of {self.node}: a datagram from {sender} could not be heard", "exception": error}
            )

    def _note(self, sender: str, source: Address, stamp: int) -> None:
        """Remembers the address of a sender, unless this datagram is older than one from there."""
        now_ns = self._clock.monotonic_ns()
        known = self._learned.get(sender)
        if known is None or stamp > known.stamp or now_ns - known.heard_ns > LEARNED_S * 1e9:
            self._learn(sender, _Learned(source, stamp, now_ns))

    def _learn(self, node: str, learned: _Learned) -> None:
        self._learned.pop(node, None)
        if len(self._learned) >= LEARNED_COUNT_MAX:
            del self._learned[next(iter(self._learned))]  # reinserted whenever heard, so the first was silent longest
        self._learned[node] = learned


def open_mesh(url: str, node: str, clock: Clock) -> UdpMesh:
    """The mesh of a node on the socket of udp://host:port; the module describes the rest of the URL."""
    return UdpMesh(parse_url(url), node, clock)
