"""The bytes of a datagram over UDP: who sends it to whom, when, and a seal. docs/formats.md has them. No I/O."""

from __future__ import annotations

import hmac
import struct

from blake3 import blake3

from stigmergy.core.errors import Malformed
from stigmergy.ports.mesh import NODE_NAME_BYTES_MAX, is_node_name

MAGIC = b"stgm"
FORMAT = 1
SEALED = 1
"""The kind of a datagram with a seal; 0 without."""
SEAL_BYTES = 16
HEADER_BYTES_MAX = 14 + 2 * (1 + NODE_NAME_BYTES_MAX) + SEAL_BYTES
_CONTEXT = "stigmergy 2026 seal of a datagram"
_FRONT = struct.Struct(">4sBBQ")


def seal_key(secret: bytes) -> bytes:
    """What datagrams are sealed with, from what is in the key file."""
    return blake3(secret, derive_key_context=_CONTEXT).digest()


def write_datagram(sender: str, to: str, body: bytes, stamp: int, key: bytes) -> bytes:
    """The bytes of a datagram; `key` is the derived one, empty for none."""
    front = _FRONT.pack(MAGIC, FORMAT, SEALED if key else 0, stamp)
    names = b"".join(bytes([len(name)]) + name.encode() for name in (sender, to))
    plain = front + names + body
    return plain + blake3(plain, key=key).digest(SEAL_BYTES) if key else plain


def read_datagram(datagram: bytes, key: bytes) -> tuple[str, str, bytes, int]:
    """Sender, receiver, body and stamp. Raises Malformed for anything that was not written with this very key."""
    if len(datagram) < _FRONT.size + 4:
        raise Malformed("too short for a datagram")
    magic, number, kind, stamp = _FRONT.unpack_from(datagram)
    if magic != MAGIC or number != FORMAT or kind != (SEALED if key else 0):
        raise Malformed("not a datagram of ours, or of another format, or sealed otherwise")
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
            raise Malformed("no name of a node where one must be")
        names.append(name)
    return names[0], names[1], datagram[place:end], stamp


def body_bytes(datagram: bytes) -> int:
    """How many bytes of a datagram of ours are its body."""
    first = datagram[_FRONT.size]
    second = datagram[_FRONT.size + 1 + first]
    return len(datagram) - _FRONT.size - 2 - first - second - (SEAL_BYTES if datagram[5] == SEALED else 0)
