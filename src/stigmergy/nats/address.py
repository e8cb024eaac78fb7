"""Addresses of NATS servers, as URLs. Pure.

    nats://hub:4222
    nats://worker:secret@hub-1:4222,hub-2:4222,hub-3:4222?replicas=3
    tls://hub:4222?ca=ca.pem&cert=worker.pem&key=worker.key

Separate several servers of one cluster with commas. The options after `?` are for the adapter that opens the URL; every
adapter knows four: `ca`, `cert` and `key` are files, `domain` names the JetStream domain.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from stigmergy.base.errors import ConfigError

SCHEMES = ("nats", "tls")
PORT = 4222
SERVERS_MAX = 16
REPLICAS = (1, 3, 5)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?")
_COMMON = ("ca", "cert", "key", "domain")
_DOMAIN = re.compile(r"[A-Za-z0-9_-]{1,32}")


class NatsAddress(Struct, frozen=True):
    """Servers of one cluster, our credentials there, and the URL's options."""

    servers: tuple[str, ...]
    """Each `scheme://host:port`."""
    user: str = ""
    password: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    domain: str = ""
    path: str = ""
    """The URL's path without the leading `/`: a name, for adapters that need one."""
    options: tuple[tuple[str, str], ...] = ()
    """Options of the adapter, by name."""

    @property
    def shown(self) -> str:
        """The URL for people: without the password."""
        first, *others = self.servers
        return ",".join([first, *(server.partition("://")[2] for server in others)])

    def option(self, name: str, default: str = "") -> str:
        return dict(self.options).get(name, default)

    @property
    def replicas(self) -> int:
        """How many servers hold each stream: 1, 3 or 5."""
        text = self.option("replicas", "1")
        if text not in (str(count) for count in REPLICAS):
            raise ConfigError(f"replicas={text}: give 1, 3 or 5; an even number survives no more losses than one less")
        return int(text)


def parse_address(url: str, options: tuple[str, ...] = ("replicas",)) -> NatsAddress:
    """Parses a URL. `options` are those that the adapter knows; others are refused, because they would do nothing."""
    scheme, separator, rest = url.partition("://")
    if scheme not in SCHEMES or not separator:
        raise ConfigError(
            f"{_hide(url)!r}: give a URL like nats://hub:4222, or tls://hub:4222 for an encrypted connection"
        )
    rest, _, query = rest.partition("?")
    rest, _, path = rest.partition("/")
    login, at, hosts = rest.rpartition("@")
    user, _, password = login.partition(":")
    given = _read_query(url, query, options)
    if given.get("domain") and _DOMAIN.fullmatch(given["domain"]) is None:
        raise ConfigError(f"domain={given['domain']}: a name is 1 to 32 letters, digits, '_' and '-'")
    if bool(given.get("cert")) != bool(given.get("key")):
        raise ConfigError(f"{_hide(url)}: cert and key belong together; give both, or neither")
    return NatsAddress(
        servers=_read_servers(url, scheme, hosts),
        user=unquote(user) if at else "",
        password=unquote(password) if at else "",
        path=unquote(path),
        options=tuple((name, value) for name, value in given.items() if name not in _COMMON),
        **{name: given.get(name, "") for name in _COMMON},
    )


def _read_servers(url: str, scheme: str, hosts: str) -> tuple[str, ...]:
    names = [name for name in hosts.split(",") if name]
    if not names or len(names) > SERVERS_MAX:
        raise ConfigError(f"{_hide(url)}: name 1 to {SERVERS_MAX} servers, like nats://hub-1:4222,hub-2:4222")
    servers: list[str] = []
    for name in names:
        found = _HOST.fullmatch(name)
        if found is None or not 0 < int(found[2] or PORT) < 65536:
            raise ConfigError(f"{_hide(url)}: {name!r} is not a server; give host:port, like hub-1:4222")
        servers.append(f"{scheme}://{found[1]}:{found[2] or PORT}")
    return tuple(servers)


def _read_query(url: str, query: str, options: tuple[str, ...]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise ConfigError(f"{_hide(url)}: options after ? must be name=value&name=value") from None
    known = (*options, *_COMMON)
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise ConfigError(f"{_hide(url)}: unknown option {name!r}; the options are {', '.join(known)}")
        if name in given:
            raise ConfigError(f"{_hide(url)}: {name!r} is given twice; give it once")
        given[name] = value
    return given


def _hide(url: str) -> str:
    """A URL for people: the part before an @ may hold a password."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
