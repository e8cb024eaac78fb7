"""The identity of a member of a fleet: a folder with its certificate and keys. Private keys are made in it and stay.

    identity.pem     the TLS key and its certificate, in one file, so that both change at once (0600)
    ca.pem           the authorities that others are checked against
    signing.key      the Ed25519 key that signs the member's log, if it has one of its own here (0600)
    next.key         the TLS key of a request that is not answered yet (0600)

This module only reads paths and rewrites URLs; it needs no library. `enrolment` fills such a folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

from stigmergy.base.errors import ConfigError

REVOKED: Final = "ca.crl"
"""In the folder of an authority: the list of its revoked certificates."""
PAIR: Final = "identity.pem"
AUTHORITIES: Final = "ca.pem"
SIGNING_KEY: Final = "signing.key"
NEXT_KEY: Final = "next.key"
ENCRYPTED: Final = ("tls://", "mqtts://")
"""URLs whose links show a certificate begin so."""
_FILES: Final = ("ca", "cert", "key")


def check_identity(folder: Path) -> Path:
    """The folder, if there is an identity in it. Raises ConfigError."""
    for name in (PAIR, AUTHORITIES):
        if not (folder / name).is_file():
            raise ConfigError(
                f"identity {str(folder)!a}: there is no {name} in it; `stigmergy ca issue` makes an identity, "
                "`stigmergy ca install` puts the answer to a request there"
            )
    return folder


def signing_key(folder: Path) -> Path | None:
    """The key that signs the log of this member, if it is kept here."""
    path = folder / SIGNING_KEY
    return path if path.is_file() else None


def with_identity(url: str, folder: str | Path | None) -> str:
    """A URL whose link shows this identity, unless it names other files, or is not encrypted."""
    if folder is None or not url.startswith(ENCRYPTED):
        return url
    rest = url.partition("://")[2]
    given = dict(parse_qsl(rest.partition("?")[2], keep_blank_values=True))
    if any(name in given for name in _FILES):
        return url
    return identity_url(url, check_identity(Path(os.path.abspath(folder))))


def identity_url(url: str, place: Path) -> str:
    """A URL that names the files of this identity."""
    paths = {"ca": place / AUTHORITIES, "cert": place / PAIR, "key": place / PAIR}
    options = "&".join(f"{name}={quote(str(path))}" for name, path in paths.items())
    return f"{url}{'&' if '?' in url else '?'}{options}"
