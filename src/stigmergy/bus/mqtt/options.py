"""Options of a broker URL: mqtt://[user:password@]host[:port][?option=value&…]. Reads only key files.

No error message shows the password.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from stigmergy.base.errors import ConfigError
from stigmergy.base.tls import RenewingContext, follow_as_client

PORT = 1883
PORT_TLS = 8883
VERSIONS = ("3.1.1", "5")
KEEPALIVE_S = 15.0
KEEPALIVE_S_MAX = 3600.0
SESSION_S = 7 * 24 * 3600.0
"""How long a broker of version 5 keeps the session of an absent client. 3.1.1 knows only 0: then no broker keeps
anything, which suits clients that run no agents."""
SESSION_S_MAX = 365 * 24 * 3600.0
RECONNECT_S_MAX = 30.0
"""The default of the longest wait before a new try to connect."""
PASSWORD_BYTES_MAX = 4096


class MqttOptions(Struct, frozen=True):
    """The broker's address and the settings of the connection."""

    host: str
    port: int
    tls: bool = False
    username: str = ""
    password: str = ""
    version: str = "3.1.1"
    ca: str = ""
    """PEM files: the CA of the broker's certificate (empty: the system's CAs), and our certificate with its key."""
    cert: str = ""
    key: str = ""
    keepalive_s: float = KEEPALIVE_S
    session_s: float = SESSION_S
    reconnect_s_max: float = RECONNECT_S_MAX

    @property
    def place(self) -> str:
        """The broker as error texts name it."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


def parse_url(url: str) -> MqttOptions:
    """Parses a URL; raises ConfigError that names the wrong part."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"bus {_shown(url)}: {error}") from None
    shown = _shown(url)
    if parts.scheme not in ("mqtt", "mqtts"):
        raise ConfigError(f"bus {shown}: write mqtt://host:1883 or mqtts://host:8883")
    if not parts.hostname:
        raise ConfigError(f"bus {shown}: no host; write {parts.scheme}://host")
    if parts.path not in ("", "/") or parts.fragment:
        raise ConfigError(f"bus {shown}: a broker has no path; take {parts.path + parts.fragment!r} out")
    tls = parts.scheme == "mqtts"
    given = _query(parts.query, shown)
    options = MqttOptions(
        host=parts.hostname,
        port=port or (PORT_TLS if tls else PORT),
        tls=tls,
        username=unquote(parts.username or ""),
        password=_password(unquote(parts.password or ""), given.pop("password_file", ""), shown),
        version=given.pop("version", VERSIONS[0]),
        ca=given.pop("ca", ""),
        cert=given.pop("cert", ""),
        key=given.pop("key", ""),
        keepalive_s=_seconds(given, "keepalive_s", KEEPALIVE_S, 1.0, KEEPALIVE_S_MAX, shown),
        session_s=_seconds(given, "session_s", SESSION_S, 0.0, SESSION_S_MAX, shown),
        reconnect_s_max=_seconds(given, "reconnect_s_max", RECONNECT_S_MAX, 0.01, 3600.0, shown),
    )
    if given:
        raise ConfigError(
            f"bus {shown}: unknown option {next(iter(given))!r}; there are version, ca, cert, key, password_file, "
            "keepalive_s, session_s, reconnect_s_max"
        )
    _check(options, shown)
    return options


class TlsContext(RenewingContext):
    """Remembers the socket that it wrapped last: paho does not close it when the handshake fails."""

    last: ssl.SSLSocket | None = None

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        self.last = super().wrap_socket(*args, **options)
        return self.last


def tls_context(options: MqttOptions) -> TlsContext:
    """The TLS settings of a link; host names are always checked. Raises ConfigError for unusable files."""
    context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        follow_as_client(context, options.ca, options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(f"{name}={file}" for name, file in _files(options) if file)
        raise ConfigError(f"{options.place}: {error}; check the PEM files {files}") from None
    return context


def _check(options: MqttOptions, shown: str) -> None:
    if options.version not in VERSIONS:
        raise ConfigError(f"bus {shown}: version {options.version!r}; there are {' and '.join(VERSIONS)}")
    if options.password and not options.username:
        raise ConfigError(f"bus {shown}: a password without a user; write {shown.partition('://')[0]}://user:…@host")
    if options.key and not options.cert:
        raise ConfigError(f"bus {shown}: key without cert; give both")
    for name, file in _files(options):
        if file and not options.tls:
            raise ConfigError(f"bus {shown}: {name} is for TLS; write mqtts://")
        if file and not Path(file).is_file():
            raise ConfigError(f"bus {shown}: {name} {file!r} is not a file")


def _files(options: MqttOptions) -> tuple[tuple[str, str], ...]:
    return (("ca", options.ca), ("cert", options.cert), ("key", options.key))


def _query(query: str, shown: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise ConfigError(f"bus {shown}: option {name!r} is given twice")
        given[name] = value
    return given


def _seconds(given: dict[str, str], name: str, default: float, least: float, most: float, shown: str) -> float:
    text = given.pop(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        raise ConfigError(f"bus {shown}: {name}={text} is not a number of seconds") from None
    if not least <= seconds <= most:
        raise ConfigError(f"bus {shown}: {name}={text}; it must be {least:g} to {most:g}")
    return seconds


def _password(password: str, file: str, shown: str) -> str:
    if not file:
        return password
    if password:
        raise ConfigError(f"bus {shown}: a password and a password_file; give one of them")
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(PASSWORD_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"bus {shown}: password_file: {error}") from None


def _shown(url: str) -> str:
    """The URL for error texts: without the password."""
    scheme, found, rest = url.partition("://")
    authority, slash, behind = rest.partition("/") if "/" in rest else rest.partition("?")
    user, at, host = authority.rpartition("@")
    if not found or not at:
        return repr(url)
    return repr(f"{scheme}://{user.partition(':')[0]}:…@{host}{slash}{behind}")
