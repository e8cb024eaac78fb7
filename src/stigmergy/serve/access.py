"""Who may ask over HTTP: tokens, the names of this server, the origins of web pages, and how often.

Without a token file everybody on this machine may read, observe and command. A web page in a browser on this machine
must not: a request must name a host that is ours (else a page could point its own name at 127.0.0.1), and one that a
page of another origin makes is refused, unless that origin is allowed by name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from stigmergy.base.errors import StigmergyError
from stigmergy.serve.tokens import ANONYMOUS, Caller, Tokens, how_to_create

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
RATE_PER_S = 5_000.0
"""Requests of one caller in a second; of more, each is refused until some time has passed."""
RATE_BURST_S = 2.0
"""So many seconds' worth may come at once."""
CALLERS_MAX = 1_000
"""So many callers are counted apart; of more, the one that has asked least recently is forgotten."""


class DeniedRequest(StigmergyError):
    """A request that is refused before anybody looks at what it asks for. `status` is the HTTP status."""

    def __init__(self, status: int, message: str, *, retry_after_s: int = 0, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow
        """With 405: the methods that are possible."""
        self.retry_after_s = retry_after_s


class Policy(Struct, frozen=True):
    """What this server was told about who may ask."""

    hosts: tuple[str, ...] = ()
    """Names of this server beside those of this machine."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may ask, such as https://ops.example."""
    rate_per_s: float = RATE_PER_S


class AccessGate:
    """Lets callers in. `wall_s` and `monotonic_s` are clocks."""

    def __init__(
        self, tokens: Tokens, policy: Policy, wall_s: Callable[[], float], monotonic_s: Callable[[], float]
    ) -> None:
        self.tokens = tokens
        self.policy = policy
        self.wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._left: dict[str, tuple[float, float]] = {}
        """Of each caller: how many requests it has left, and when that was so."""

    def admit(self, headers: dict[bytes, bytes], address: str, scheme: str) -> Caller:
        """Who asks. Raises DeniedRequest."""
        self._check_origin(headers, scheme)
        caller = self._caller(headers, address)
        self._count(caller.name)
        return caller

    def check(self, caller: Caller, scope: str) -> None:
        """Raises DeniedRequest unless the caller has this scope."""
        if not caller.may(scope):
            raise DeniedRequest(403, f"{caller.name} has no scope {scope!r}; make a token with --scope {scope}")

    def is_still_valid(self, caller: Caller) -> bool:
        """Whether a caller that was let in may stay."""
        if caller.token is None:
            return not self.tokens.is_there
        return self.tokens.is_still_valid(caller.token, self.wall_s())

    def allowed_origin(self, headers: dict[bytes, bytes]) -> bytes | None:
        """The origin of another site that may ask, if the request comes from one."""
        origin = headers.get(b"origin")
        return origin if origin is not None and origin.decode("latin-1") in self.policy.origins else None

    def _caller(self, headers: dict[bytes, bytes], address: str) -> Caller:
        given = headers.get(b"authorization", b"").decode("latin-1")
        if not self.tokens.is_there:
            self._check_host(headers)
            if given:
                raise DeniedRequest(401, f"this server has no tokens: give none, or make one{self._how_for(address)}")
            return Caller(address, ANONYMOUS)
        kind, _, text = given.partition(" ")
        token = self.tokens.find(text.strip(), self.wall_s()) if kind.lower() == "bearer" else None
        if token is None:
            raise DeniedRequest(
                401, f"give a valid token: Authorization: Bearer TOKEN; make one{self._how_for(address)}"
            )
        return Caller(token.name, token.scopes, token)

    def _how_for(self, address: str) -> str:
        """The command that makes a token for this server. Callers elsewhere do not learn where its files are."""
        known = self.tokens.path.absolute() if is_loopback(address) else Path("FILE")
        return f" with {how_to_create(known)}"

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        host = host_name(headers.get(b"host", b"").decode("latin-1"))
        if host not in LOCAL_NAMES and host not in self.policy.hosts:
            raise DeniedRequest(
                421, f"{host!r} is no name of this server; ask for localhost, or start it with --host {host}"
            )

    def _check_origin(self, headers: dict[bytes, bytes], scheme: str) -> None:
        origin = headers.get(b"origin")
        if origin is None or self.allowed_origin(headers) is not None:
            return
        if origin != f"{scheme}://".encode() + headers.get(b"host", b""):
            shown = origin.decode("latin-1")[:100]
            raise DeniedRequest(403, f"a web page of {shown} may not ask here; allow it with --cors {shown}")

    def _count(self, name: str) -> None:
        rate, now_s = self.policy.rate_per_s, self._monotonic_s()
        left, at_s = self._left.pop(name, (rate * RATE_BURST_S, now_s))
        left = min(rate * RATE_BURST_S, left + (now_s - at_s) * rate)
        if len(self._left) >= CALLERS_MAX:
            del self._left[next(iter(self._left))]
        self._left[name] = (max(left - 1.0, 0.0), now_s)
        if left < 1.0:
            raise DeniedRequest(429, f"{name} asks more than {rate:g} times a second; ask less often", retry_after_s=1)


def host_name(host: str) -> str:
    """The name in a Host header, without the port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_listening(host: str, tokens: Tokens, now_s: float, *, tls: bool, insecure: bool) -> str:
    """Why a server must not listen at this address; empty if it may."""
    if is_loopback(host) or insecure:
        return ""
    if not any(token.is_valid(now_s) for token in tokens.all()):
        return (
            f"{host} is reached by others, and there is no valid token in {tokens.path}: make one with "
            f"{how_to_create(tokens.path)}, or listen on 127.0.0.1, or give --insecure to let everybody in"
        )
    if not tls:
        return (
            f"{host} is reached by others, who could read tokens on the way: give --cert and --cert-key, or --insecure"
        )
    return ""
