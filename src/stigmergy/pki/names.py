"""Whom a certificate names: a member of a fleet, as a URI. Pure.

    stigmergy://town/node/north        in each certificate, and the user that a NATS server maps it to

The name alone is unique in a fleet, whatever its kind: brokers know a client by its common name only.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from msgspec import Struct

from stigmergy.base.errors import ConfigError

NODE: Final = "node"
DEVICE: Final = "device"
SERVER: Final = "server"
PERSON: Final = "person"
ADMIN: Final = "admin"
KINDS: Final = (NODE, DEVICE, SERVER, PERSON, ADMIN)
"""Processes that run agents, devices that speak MQTT only, servers, people, and the administrators of servers."""
NAME_CHARACTERS_MAX: Final = 64
"""Of a name and of a fleet: X.509 has no room for more."""
HOSTS_COUNT_MAX: Final = 32
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62}))*")
_HOST_CHARACTERS_MAX = 253
_SCHEME = "stigmergy://"


class Subject(Struct, frozen=True):
    """A member of a fleet."""

    fleet: str
    kind: str
    name: str

    @property
    def uri(self) -> str:
        """How its certificate names it."""
        return f"{_SCHEME}{self.fleet}/{self.kind}/{self.name}"

    @property
    def shown(self) -> str:
        """For people."""
        return f"{self.kind} {self.name}"


def subject_of(fleet: str, kind: str, name: str) -> Subject:
    """Raises ConfigError for what cannot be in a certificate."""
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} gets no certificate; there are {', '.join(KINDS)}")
    for what, text in (("fleet", fleet), (kind, name)):
        if len(text) > NAME_CHARACTERS_MAX or _NAME.fullmatch(text) is None:
            raise ConfigError(
                f"{what} {text[: NAME_CHARACTERS_MAX + 1]!a}: a name in a certificate is 1 to {NAME_CHARACTERS_MAX} "
                "letters, digits, '_', '-', and '.' between them"
            )
    return Subject(fleet, kind, name)


def is_identity(uri: str) -> bool:
    """Whether a URI in a certificate says who somebody is."""
    return uri.startswith(_SCHEME)


def read_subject(uri: str) -> Subject:
    """Reads such a URI. Raises ConfigError."""
    parts = uri.removeprefix(_SCHEME).split("/")
    if not is_identity(uri) or len(parts) != 3:
        raise ConfigError(f"{uri[:300]!a} names nobody; it must be {_SCHEME}FLEET/KIND/NAME")
    return subject_of(*parts)


def server_uri(fleet: str) -> str:
    """What the certificates of all servers of a fleet say besides: they know each other by it."""
    return f"{_SCHEME}{fleet}/{SERVER}"


def check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The names and addresses that a server is reached by, each once. Raises ConfigError."""
    found = tuple(dict.fromkeys(host.strip("[]") for host in hosts))
    if len(found) > HOSTS_COUNT_MAX:
        raise ConfigError(f"{len(found)} hosts: a certificate has {HOSTS_COUNT_MAX} at most")
    for host in found:
        if not is_address(host) and (len(host) > _HOST_CHARACTERS_MAX or _HOST.fullmatch(host) is None):
            raise ConfigError(f"{host[:_HOST_CHARACTERS_MAX]!a} is no host; give names or addresses, such as hub-1")
    return found


def is_address(host: str) -> bool:
    """Whether it is an IP address, which a certificate lists in another place than names."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
