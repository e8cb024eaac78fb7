"""The archive port: where the log goes before a node drops it, and the flight logs that are read back from there."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from msgspec import Struct

from stigmergy.audit.flight_format import FlightManifest, FlightOpening, FlightSeal
from stigmergy.journal.port import Journal
from stigmergy.shard.directory import Directory


class Flaw(Struct, frozen=True):
    """Bytes of a flight log that are not those that were written; position 0 where it is not known which commit."""

    shard: int
    position: int
    what: str


@runtime_checkable
class CarriesDirectory(Protocol):
    """A part of a log that brings along what was declared and enrolled before it begins."""

    def directory_before(self, shard: int) -> Directory:
        """Layouts, templates and names that its commits of this shard need; a new one, empty where none are needed."""
        ...


class FlightLog(Journal, CarriesDirectory, Protocol):
    """A flight log, read as a journal that nobody writes to. It has no snapshots, and every write raises Bug."""

    @property
    def opening(self) -> FlightOpening:
        """Whose log it is."""
        ...

    @property
    def manifest(self) -> FlightManifest | None:
        """What should be in it; None where the file was cut off."""
        ...

    @property
    def manifest_bytes(self) -> bytes:
        """The manifest as it was signed."""
        ...

    @property
    def seal(self) -> FlightSeal | None:
        """Who vouches for the manifest."""
        ...

    @property
    def flaws(self) -> list[Flaw]:
        """What the file itself shows to be damaged."""
        ...


class Archive(Protocol):
    """Keeps flight logs, each written once and never changed.

    Durability: `keep` returns only when the file, read back, has these very bytes and survives loss of power; all of it
        is there or nothing. A file of that name from an earlier try is replaced.
    Concurrency: one `keep` at a time.
    Errors: JournalFull where there is no room, JournalError for anything else. The caller that gets one keeps the log.
    """

    async def keep(self, name: str, data: bytes) -> None:
        """Keeps a flight log under this name."""
        ...

    async def close(self) -> None:
        """Ends its connection, if it has one. Closing twice does nothing."""
        ...
