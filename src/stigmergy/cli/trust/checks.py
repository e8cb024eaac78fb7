"""What `stigmergy doctor` says of an identity: how its files are kept, how long it lasts, whose key it names."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from stigmergy.app.fleet import read_key
from stigmergy.base.errors import ConfigError, StigmergyError, TrustError
from stigmergy.cli.machine_checks import Finding, ill, well, worry
from stigmergy.pki.files import open_to_others
from stigmergy.pki.identity import NEXT_KEY, PAIR, SIGNING_KEY

DAY_S = 86_400
LEFT = 1 / 3
"""A certificate that has less than this share of its life left should have been renewed."""


def check_identity_folder(text: str | None, key: Path | None, now_s: float) -> Iterator[Finding]:
    """The identity that the configuration names; `key` signs the log."""
    if text is None:
        return
    folder = Path(text)
    for name in (PAIR, SIGNING_KEY, NEXT_KEY):
        if (path := folder / name).exists() and (objection := open_to_others(path, path.stat().st_mode)):
            yield ill("identity.files", objection, f"chmod 600 {path}")
    if folder.is_dir() and folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield ill("identity.files", f"others may put files into {folder}", f"chmod 700 {folder}")
    try:
        from stigmergy.pki.enrolment import read_identity

        found = read_identity(folder)
    except (ConfigError, TrustError) as error:
        yield ill("identity.valid", str(error), "make it anew with `stigmergy ca`; see docs/certificates.md")
        return
    renew = f"stigmergy ca renew {folder}, at its authority"
    left_days = (found.until_s - now_s) / DAY_S
    what = f"the certificate of {found.subject.shown} of {found.subject.fleet}"
    if left_days < 0:
        yield ill("identity.valid", f"{what} ended {-left_days:.0f} days ago: no link with TLS comes up", renew)
    elif found.from_s > now_s:
        yield ill("identity.valid", f"{what} is not valid yet", "set the clock of this machine")
    elif now_s > found.until_s - LEFT * (found.until_s - found.from_s):
        yield worry("identity.valid", f"{what} ends in {left_days:.0f} days", renew, days=round(left_days))
    else:
        yield well("identity.valid", f"{what} is valid for {left_days:.0f} days", days=round(left_days))
    if found.signing_key and key is not None and key.exists():
        yield _check_key(found.signing_key, key)


def _check_key(named: bytes, key: Path) -> Finding:
    try:
        signs = read_key(str(key)).key
    except StigmergyError as error:
        return ill("identity.key", str(error), "restore the key from a copy")
    if signs == named:
        return well("identity.key", "the certificate names the key that signs the log")
    what = f"the log is signed with {key}, and the certificate names another key"
    return worry("identity.key", what, f"ask for a certificate that names it: stigmergy ca request … --key {key}")
