"""TLS contexts that take up renewed files by themselves: the next handshake has them, open links go on."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Any


class RenewingContext(ssl.SSLContext):
    """Made anew before a handshake whenever one of its files has changed; a damaged file fails that handshake."""

    _build: Callable[[], ssl.SSLContext]
    _files: tuple[str, ...] = ()
    _seen: tuple[tuple[int, int, int], ...] = ()
    _inner: ssl.SSLContext

    def follow(self, build: Callable[[], ssl.SSLContext], *files: str) -> None:
        """`build` makes the context that counts, from these files; it is called now, and whenever one of them changes.
        Raises what it raises."""
        self._build, self._files = build, tuple(file for file in files if file)
        self._refresh()

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self._refresh().wrap_socket(*args, **options)

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._refresh().wrap_bio(*args, **options)

    def _refresh(self) -> ssl.SSLContext:
        seen = tuple(file_state(path) for path in self._files)
        if seen != self._seen or not self._seen:
            self._inner, self._seen = self._build(), seen
        return self._inner


def follow_as_client(context: RenewingContext, ca: str, cert: str, key: str) -> None:
    """For links that we open: host names are checked, against `ca` or the system's authorities. Raises OSError,
    ssl.SSLError for unusable files."""

    def build() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if ca:
            made.load_verify_locations(ca)
        else:
            made.load_default_certs()
        if cert:
            made.load_cert_chain(cert, key or None)
        return made

    context.follow(build, ca, cert, key)


def server_context(cert: str, key: str, client_ca: str = "", revoked: str = "") -> RenewingContext:
    """For links that others open; with `client_ca` they must show a certificate of it that is not on the list
    `revoked`. Raises OSError, ssl.SSLError."""

    def build() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.load_cert_chain(cert, key)
        if client_ca:
            made.load_verify_locations(client_ca)
            made.verify_mode = ssl.CERT_REQUIRED
        if revoked:
            made.load_verify_locations(revoked)
            made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return made

    context = RenewingContext(ssl.PROTOCOL_TLS_SERVER)
    context.follow(build, cert, key, client_ca, revoked)
    return context


def file_state(path: str) -> tuple[int, int, int]:
    """What changes when a file does. Raises OSError."""
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size
