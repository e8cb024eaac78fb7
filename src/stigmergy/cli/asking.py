"""Asks a running node through its socket, or a fleet on several workers through NATS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stigmergy.cli import exits
from stigmergy.cli.output import BAD, Output
from stigmergy.cli.places import ClusterPlace, Place
from stigmergy.core.errors import NotRunning, Overloaded, TooLarge
from stigmergy.doors import ClusterClient
from stigmergy.runtime.protocol import (
    REQUEST_BYTES_MAX,
    AnyRequest,
    Claims,
    Letters,
    Quarantine,
    Roster,
    Shared,
    Status,
    read_reply,
    write_request,
)
from stigmergy.wiring import ControlClient

LOOK_S_MAX = 10.0
"""A node that runs has an answer to these at once; who looks at one that hangs is to learn that it does."""
LOOKS = (Status, Shared, Quarantine, Claims, Letters, Roster)


def ask(place: Place, request: AnyRequest, *, doubt: str = "") -> Any:
    """The one answer to a request; raises what the node refuses with.

    `doubt` is said beside an answer that did not come: what was asked may have been done. Where nobody could be reached
    it was not.
    """
    client = _client(place, request)
    try:
        for line in client.ask(_line(request)):
            return read_reply(line).ok
        raise NotRunning("the node did not answer")
    except (NotRunning, Overloaded) as error:
        if not doubt:
            raise
        raise type(error)(f"{error}; {doubt}") from None
    finally:
        client.close()


def ask_stream(place: Place, request: AnyRequest) -> Iterator[Any]:
    """The items that answer a request, as they come. Raises NotRunning at the end if a part did not answer."""
    listing = Listing()
    yield from _listed(place, request, listing)
    if listing.missing:
        raise NotRunning(listing.missing[0]["why"])


class Listing:
    """The items that answered a request, and the parts of a fleet or a node that did not answer."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.missing: list[dict[str, Any]] = []
        """The number of each as `shard` or `process`, and `why`."""

    @property
    def is_empty(self) -> bool:
        """Whether all have answered, and there is nothing."""
        return not self.items and not self.missing

    def end(self, output: Output) -> int:
        """Says who did not answer, after all the others have said is shown; the exit code."""
        if not self.missing:
            return exits.OK
        output.document({"missing": self.missing})
        for one in self.missing:
            output.note(f"not shown: {one['why']}", BAD)
        return exits.NOT_RUNNING


def ask_list(place: Place, request: AnyRequest) -> Listing:
    """All items that answer a request, of as many parts as answer; end with the `end` of the listing."""
    listing = Listing()
    listing.items.extend(_listed(place, request, listing))
    return listing


def _listed(place: Place, request: AnyRequest, listing: Listing) -> Iterator[Any]:
    client = _client(place, request)
    try:
        for line in client.ask(_line(request)):
            reply = read_reply(line)
            if reply.end is not None:
                listing.missing.extend(reply.end.get("missing", ()))
                return
            yield reply.item
    finally:
        client.close()


def _client(place: Place, request: AnyRequest) -> ControlClient | ClusterClient:
    if isinstance(place, ClusterPlace):
        return ClusterClient(place.url, place.fleet)
    return ControlClient(place, timeout_s=LOOK_S_MAX) if isinstance(request, LOOKS) else ControlClient(place)


def _line(request: AnyRequest) -> bytes:
    line = write_request(request)
    if len(line) > REQUEST_BYTES_MAX:
        raise TooLarge(
            f"a request of {len(line)} bytes, {REQUEST_BYTES_MAX} at most; send less, or large things by reference"
        )
    return line
