"""What a running node streams of its log to whoever exports it, in small pieces; None lets the node go on."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from stigmergy.ports.journal import Journal
from stigmergy.ports.trust import Signer
from stigmergy.runtime.audit.export import Export, Selection
from stigmergy.runtime.audit.flight import Cut, commits_in, make_flight
from stigmergy.runtime.protocol import Export as ExportRequest
from stigmergy.runtime.protocol import Flight as FlightRequest

TOLD_COMMITS = 1_000
"""So often an export says how far it has come."""


def export_items(journal: Journal, request: ExportRequest) -> Iterator[Any]:
    """Entries, and before the first and after every so many commits how far it is, and whose log it is."""
    selection = Selection(**{name: getattr(request, name) for name in Selection.__struct_fields__})
    export = Export(journal, selection)
    whose = {"fleet": journal.identity.fleet, "incarnation": journal.identity.incarnation}
    yield {"commits": 0, "of": export.commits_expected, **whose}
    told = 0
    for entry in export.entries():
        if export.commits_read >= told + TOLD_COMMITS:
            told = export.commits_read
            yield {"commits": told, "of": export.commits_expected, **whose}
        yield entry


def flight_items(journal: Journal, signer: Signer, request: FlightRequest, made_ns: int) -> Iterator[Any]:
    """The bytes of a flight log up to the end that the log has now."""
    asked = Cut(request.agent, request.since_ns, request.until_ns, reason=request.reason)
    of = commits_in(journal, asked)
    for number, piece in enumerate(make_flight(journal, signer, asked, made_ns)):
        yield {"commits": min(number, of), "of": of, "data": base64.b64encode(piece).decode()}
