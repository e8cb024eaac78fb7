"""`stigmergy shared` and `claims`: requests of an operator to a node among others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, HEADING, NAME, WARN, Cell, Output, counted, shown_bytes
from stigmergy.cli.display.places import Listing, add_place, ask, ask_list, find_place
from stigmergy.control.protocol import ClaimsRequest, LiftRequest, QuarantineRequest, RetireRequest, SharedRequest
from stigmergy.control.replies import BeliefReply, ClaimantReply, ObjectReply, Part, QuarantineReply, ResourceReply

ACTIONS = ("list", "show", "quarantine", "lift", "retire")
NAMES_SHOWN_MAX = 3
KEY_DIGITS = 16
"""So much of a key tells it apart in a list; `lift` takes as little."""
SHARED_EXAMPLES = """examples:
  stigmergy shared                                    the objects that this node holds, and who has them too
  stigmergy shared show Crossing.vehicles/town        one of them, with its replicas
  stigmergy shared quarantine                         the quarantined keys and replicas, and why
  stigmergy shared lift 3fa9                          take from that key again; the first digits will do
  stigmergy shared retire Crossing.vehicles/town 7c01    retire a replica that never comes back
"""
CLAIMS_EXAMPLES = """examples:
  stigmergy claims              who holds what by the ledger, who waits, and what this node believes
  stigmergy claims crossing/12  one resource
  stigmergy claims --nats nats://hub:4222 --fleet drone:fleet    of a fleet on several workers
"""


def add_commands(commands: Any) -> None:
    """Adds the commands about shared objects and claims."""
    parser = commands.add_parser(
        "shared",
        run=shared,
        help="show shared objects, lift quarantines, retire replicas",
        description="Lists the shared objects of a running node, and its quarantines.",
        epilog=SHARED_EXAMPLES,
    )
    parser.add_argument("action", choices=ACTIONS, nargs="?", default="list")
    parser.add_argument("subject", metavar="OBJECT|KEY", nargs="?", help="which, as the lists say")
    parser.add_argument("replica", metavar="REPLICA", nargs="?", help="which replica is retired, as show says")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "claims",
        run=claims,
        help="show who holds what, and who waits",
        description="Shows the state of the ledger, as far as this node has read it, and what the node believes.",
        epilog=CLAIMS_EXAMPLES,
    )
    parser.add_argument(
        "resource", metavar="RESOURCE", nargs="?", help="one resource; else all that are held or awaited"
    )
    add_place(parser, nats=True)


def shared(arguments: argparse.Namespace, output: Output) -> int:
    """Does what the action says."""
    action, subject, replica = arguments.action, arguments.subject, arguments.replica
    wanted = {"list": 0, "show": 1, "quarantine": 0, "lift": 1, "retire": 2}[action]
    if (subject is not None) + (replica is not None) != wanted:
        what = ("nothing more", "one name", "an OBJECT and a REPLICA")[wanted]
        raise ConfigError(f"shared {action} takes {what}: stigmergy shared --help")
    path = find_place(arguments)
    match action:
        case "show":
            listing = ask_list(path, SharedRequest(object=subject))
            for found in listing.items:
                output.document(found)
                _show_object(found, output)
            return listing.end(output)
        case "quarantine":
            return _list_quarantine(ask_list(path, QuarantineRequest()), output)
        case "lift":
            answer = ask(path, LiftRequest(key=subject))
            output.document(answer)
            output.line(("lifted", GOOD), f"  {answer.key}; what it says is taken again, and checked as ever")
        case "retire":
            retired = ask(path, RetireRequest(object=subject, replica=replica))
            output.document(retired)
            output.line(("retired", GOOD), f"  {retired.replica} of {retired.object}; if it writes, it is back")
        case _:
            return _list_objects(ask_list(path, SharedRequest()), output)
    return exits.OK


def claims(arguments: argparse.Namespace, output: Output) -> int:
    """Lists who holds what, or says it of one resource."""
    place = find_place(arguments)
    listing = ask_list(place, ClaimsRequest(resource=arguments.resource))
    for one in listing.items:
        output.document(one)
    if arguments.resource is not None:
        _show_resource(listing.items[0], output)
        return listing.end(output)
    rows = [_resource_row(one) for one in listing.items]
    here = "THIS NODE" if isinstance(place, Path) else "ITS AGENTS"
    output.table(("RESOURCE", "HOLDER", "TOKEN", "POSITION", "FOR", "WAITING", here) if rows else (), rows)
    if listing.is_empty:
        output.note("nobody holds anything or waits for it, as far as this node has read the ledger")
    return listing.end(output)


# ---------------------------------------------------------------------- shared objects


def _list_objects(listing: Listing[ObjectReply], output: Output) -> int:
    found = listing.items
    for one in found:
        output.document(one)
    rows = [
        (
            (one.object, NAME),
            *_part(one),
            _few(one.agents),
            f"{one.live:,}",
            shown_bytes(one.live_bytes),
            f"{one.replicas_count:,}",
            _in_step(one),
            one.digest[:12],
            _state(one),
        )
        for one in found
    ]
    heading = ("OBJECT", *_part_heading(found), "AGENTS HERE", "LIVE", "SIZE", "REPLICAS", "IN STEP", "DIGEST", "STATE")
    output.table(heading if rows else (), rows)
    if listing.is_empty:
        output.note("no shared objects: no agent here has had an input yet that has a Shared field")
    return listing.end(output)


def _show_object(one: ObjectReply, output: Output) -> None:
    where = "" if one.shard is UNSET else f"  shard {one.shard}"
    output.line((one.object, NAME), f"{where}  ", _state(one))
    output.fields(
        [
            ("agents here", ", ".join(one.agents)),
            ("live", f"{counted(one.live, 'entry', 'entries')}, {shown_bytes(one.live_bytes)}"),
            ("digest", one.digest),
            ("in step", _in_step(one)),
            *(("peer", _peer(peer, one)) for peer in dict.fromkeys([*one.peers, *one.unheard])),
        ]
    )
    rows: list[list[Cell]] = [
        [
            replica.replica,
            f"{replica.counter:,}",
            (replica.agent, NAME) if replica.agent else ("retired", HEADING) if replica.retired else "",
        ]
        for replica in one.replicas
    ]
    output.table(("REPLICA", "CHANGES", "") if rows else (), rows)
    if one.replicas_count > len(rows):
        output.line((f"… and {one.replicas_count - len(rows):,} more", HEADING))


def _list_quarantine(listing: Listing[QuarantineReply], output: Output) -> int:
    found = listing.items
    for one in found:
        output.document(one)
    rows = [
        (
            one.key[:KEY_DIGITS],
            *_part(one),
            (one.node or "unknown", NAME),
            one.object,
            one.since[:19] + "Z",
            one.why,
        )
        for one in found
    ]
    output.table(("KEY", *_part_heading(found), "NODE", "OBJECT", "SINCE", "WHY") if rows else (), rows)
    if listing.is_empty:
        output.note("nobody is quarantined: this node has seen no proof of a lie since its start")
    return listing.end(output)


def _part(one: Part) -> list[Cell]:
    """Of a fleet on workers, the shard whose answer this is."""
    return [] if one.shard is UNSET else [str(one.shard)]


def _part_heading(found: Sequence[Part]) -> list[str]:
    return ["SHARD"] if found and _part(found[0]) else []


def _in_step(one: ObjectReply) -> Cell:
    """How many of the peers that hold an object had everything when they last said."""
    unheard = f"{counted(len(one.unheard), 'peer')} not heard" if one.unheard else ""
    if not one.peers:
        return (unheard, WARN) if unheard else ("no peers", HEADING)
    count, of = len(one.in_step), len(one.peers)
    shown = f"{count} of {counted(of, 'peer')}"
    return (f"{shown}, {unheard}", WARN) if unheard else (shown, GOOD if count == of else WARN)


def _peer(peer: str, one: ObjectReply) -> Cell:
    if peer in one.unheard:
        return (f"{peer}, not heard for a while", WARN)
    return (peer, GOOD) if peer in one.in_step else (f"{peer}, behind or ahead when it last said", WARN)


def _state(one: ObjectReply) -> Cell:
    if one.diverged:
        return ("diverged", BAD)
    if one.waiting:
        return (f"{one.waiting:,} waiting", WARN)
    return ("unknown: peers not heard", WARN) if one.unheard else ("well", GOOD)


def _few(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")


# ---------------------------------------------------------------------- claims


def _resource_row(one: ResourceReply) -> list[Cell]:
    return [
        (one.resource, NAME),
        _holder(one),
        "" if one.token is None else f"{one.token:,}",
        "" if one.since is None else f"{one.since:,}",
        "" if one.for_s is None else f"{one.for_s:g} s",
        f"{len(one.queue):,}" if one.queue else "",
        _belief(one.believed),
    ]


def _show_resource(one: ResourceReply, output: Output) -> None:
    output.line((one.resource, NAME))
    if one.holder is None and one.offered is None and not one.believed:
        output.note("nobody holds it or waits for it, as far as this node has read the ledger")
        return
    fields: list[tuple[str, Cell]] = [("holder", _holder(one))]
    if one.holder is not None:
        lease = f"{one.token:,}, a lease of {one.for_s:g} s that began at position {one.since:,}"
        fields += [("token", lease)]
        fields += [("key", one.holder.key)] if one.holder.key else []
    fields += [("waits", _waiter(waiter)) for waiter in one.queue]
    fields += [("here", _belief([belief])) for belief in one.believed]
    output.fields(fields)


def _holder(one: ResourceReply) -> Cell:
    if one.holder is not None:
        return _claimant(one.holder)
    return (f"offered to {_claimant(one.offered)}", WARN) if one.offered is not None else ("nobody", HEADING)


def _claimant(one: ClaimantReply) -> str:
    named = f"{one.agent} {one.claim}" if one.agent else f"claimant {one.claimant[:KEY_DIGITS]}"
    return f"{named}, for any of {', '.join(one.any_of)}" if one.any_of else named


def _waiter(one: ClaimantReply) -> str:
    """Who waits, since when, and of which node and journal."""
    parts = [_claimant(one)]
    parts += [f"for {one.waits_s:.0f} s (position {one.queued_at:,})"] if one.waits_s and one.queued_at else []
    parts += [f"key {one.key[:KEY_DIGITS]}"] if one.key else []
    parts += [f"journal {one.incarnation:x}"] if one.incarnation else []
    return ", ".join(parts)


def _belief(believed: list[BeliefReply]) -> Cell:
    """What agents here may act upon: the holder, or else who asks."""
    for one in believed:
        if one.holds:
            renews = ", renewed by itself" if one.renews else ""
            return (f"{one.agent} holds it, {one.left_s:.1f} s left{renews}", GOOD)
    asking = [f"{one.agent} (any of {len(one.any_of)})" if one.any_of else one.agent for one in believed if one.asking]
    return (f"{_few(asking)} asks" if asking else "", WARN)
