"""Who has certificates of an authority: the list in its folder, `ca.json`. It holds no secret, and needs no library."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError
from stigmergy.pki.files import read_file

LIST: Final = "ca.json"
FORMAT: Final = 1
WHAT: Final = "the folder that `stigmergy ca init` has made"


class Issued(Struct, frozen=True):
    """A certificate that was given out."""

    serial: str
    from_s: int
    until_s: int


class Holder(Struct, frozen=True):
    """Somebody who has, or had, certificates."""

    kind: str
    certificates: tuple[Issued, ...]
    """The last of them, and earlier ones that are still valid."""
    hosts: tuple[str, ...] = ()
    signing_key: str = ""
    """Hex digits; empty for none."""
    revoked_s: int = 0
    """When it was revoked; 0 if it was not."""

    @property
    def until_s(self) -> int:
        """When its last certificate ends."""
        return self.certificates[-1].until_s


class HolderList(Struct, frozen=True):
    """The content of `ca.json`."""

    fleet: str
    members: dict[str, Holder] = {}
    format: int = FORMAT


def read_holders(path: Path) -> HolderList:
    """The list of an authority's members. Raises ConfigError."""
    try:
        found = msgspec.json.decode(read_file(path / LIST, WHAT), type=HolderList)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{str(path / LIST)!a} is damaged ({error}); restore it from a copy") from None
    if found.format > FORMAT:
        raise ConfigError(f"{str(path / LIST)!a} is of a later version (format {found.format}); update stigmergy")
    return found
