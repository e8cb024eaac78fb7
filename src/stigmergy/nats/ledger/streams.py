"""The streams of a ledger on NATS: their names, subjects and settings, and the meaning of JetStream's errors.

The log is one stream with two subjects, one of them only for cuts, so that a new reader finds the last one. The server
republishes each message when it stores it, so that all connected readers get it at once. Checkpoints have their own
stream, which keeps one message per subject.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from stigmergy.base.errors import ConfigError, LedgerError, LedgerUnavailable, LinkDown
from stigmergy.claims.port import check_name
from stigmergy.nats import naming
from stigmergy.nats.address import NatsAddress, parse_address
from stigmergy.nats.errors import JetStreamRefused

NOT_THERE = (LinkDown, ConfigError)
"""Errors of a call without an answer; ConfigError if the server that answers no longer has JetStream."""
DEDUPE_S = 120
SECOND_NS = 1_000_000_000
PAYLOAD_BYTES_MIN = 64 * 1024
"""Servers that accept only smaller messages are refused."""


class LedgerAddress(Struct, frozen=True):
    """The address of a ledger."""

    name: str
    address: NatsAddress
    key: str
    """Names streams and subjects: the URL's path, else the ledger's name."""
    replicas: int
    says_replicas: bool
    """Whether the URL gives replicas; otherwise an existing ledger may have any number."""

    @property
    def stream(self) -> str:
        """The stream of the log."""
        return naming.ledger_stream(self.key)

    @property
    def checkpoints(self) -> str:
        """The stream of the checkpoint."""
        return naming.ledger_checkpoints(self.key)

    @property
    def _root(self) -> str:
        return naming.ledger_subject(self.key)

    @property
    def log_subject(self) -> str:
        """Where everything but cuts is written."""
        return f"{self._root}.log"

    @property
    def cut_subject(self) -> str:
        return f"{self._root}.cut"

    @property
    def told_subjects(self) -> str:
        """Where the server republishes stored messages."""
        return f"{self._root}.told.*"

    @property
    def head_subject(self) -> str:
        """Where the checkpoint's head is written."""
        return f"{self._root}.state.head"

    def chunk_subject(self, checkpoint: str, number: int | str) -> str:
        """Where a piece of a checkpoint is written."""
        return f"{self._root}.state.chunk.{checkpoint}.{number}"

    @property
    def direct_get(self) -> str:
        """Where any replica answers with messages of the log."""
        domain = f"{self.address.domain}." if self.address.domain else ""
        return f"$JS.{domain}API.DIRECT.GET.{self.stream}"

    @property
    def shown(self) -> str:
        return f"ledger {self.name!r} at {self.address.shown}"

    def log_settings(self) -> dict[str, Any]:
        """Of the log's stream. Only a purge removes messages, and a full store refuses new ones."""
        return {
            "subjects": [self.log_subject, self.cut_subject],
            "storage": "file",
            "num_replicas": self.replicas,
            "retention": "limits",
            "discard": "new",
            "max_age": 0,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "deny_delete": True,
            "allow_direct": True,
            "duplicate_window": DEDUPE_S * SECOND_NS,
            "republish": {"src": f"{self._root}.*", "dest": f"{self._root}.told.{{{{wildcard(1)}}}}"},
        }

    def checkpoint_settings(self) -> dict[str, Any]:
        """Of the checkpoint's stream."""
        return {
            "subjects": [f"{self._root}.state.>"],
            "storage": "file",
            "num_replicas": self.replicas,
            "retention": "limits",
            "discard": "old",
            "max_msgs_per_subject": 1,
            "max_age": 0,
        }


def find_place(url: str, name: str) -> LedgerAddress:
    """Parses the URL of a ledger. Raises ConfigError."""
    check_name(name)
    address = parse_address(url, ("replicas",))
    if address.path and (len(address.path) > 128 or not address.path.isprintable()):
        raise ConfigError(f"ledger {address.path!r}: the path must be a name of 1 to 128 printable characters")
    says_replicas = bool(address.option("replicas"))
    return LedgerAddress(name, address, address.path or name, address.replicas, says_replicas)


def to_compare(place: LedgerAddress, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that an existing stream must have."""
    return {name: value for name, value in settings.items() if place.says_replicas or name != "num_replicas"}


def refused(place: LedgerAddress, error: JetStreamRefused) -> LedgerError:
    """Translates a refusal of JetStream: in every case nothing was written."""
    if error.is_full:
        return LedgerUnavailable(
            f"{place.shown}: no room ({error}); nothing was written: store a checkpoint and cut the log, or give the "
            "servers more room (max_file)"
        )
    return LedgerUnavailable(f"{place.shown}: refused ({error}); nothing was written, try again")
