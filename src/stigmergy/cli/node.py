"""`stigmergy status`, `roster`, `letters`, `commands`, `resume` and `stop`: requests to a running node."""

from __future__ import annotations

import argparse
import getpass
import os
import select
from typing import Any

from stigmergy.agents.assignment import shown
from stigmergy.app.fleet import PublicKey, fingerprint
from stigmergy.base.errors import ConfigError, NotRunning
from stigmergy.bus.port import NO_BUS, UP
from stigmergy.cli.cluster import add_cluster, status_of_cluster
from stigmergy.cli.display import exits
from stigmergy.cli.display.frames import ranges, replication_fields
from stigmergy.cli.display.output import (
    BAD,
    GOOD,
    HEADING,
    NAME,
    WARN,
    Cell,
    Output,
    counted,
    shown_bytes,
    shown_fields,
)
from stigmergy.cli.display.places import add_place, ask, ask_list, find_place, find_socket
from stigmergy.control.protocol import (
    CommandsRequest,
    DropRequest,
    LettersRequest,
    ResumeRequest,
    RetryRequest,
    RosterRequest,
    StatusRequest,
    StopRequest,
)
from stigmergy.control.replies import CopyReply, HeadReply, LinkReply, ProcessReply, SignerReply
from stigmergy.uplink.messages import UplinkStatus

STOP_WAIT_S = 30.0
WORKER_HINT = "start one: stigmergy worker MODULE:FLEET --nats URL"
LETTERS_EXAMPLES = """examples:
  stigmergy letters                     inputs that failed, oldest first
  stigmergy letters retry 0.4711.2      give it to its agent once more
  stigmergy letters drop 0.4711.2       give it up
"""


def add_commands(commands: Any) -> None:
    """Adds the commands for operators."""
    parser = commands.add_parser(
        "status", run=status, help="show the state of a node", description="Shows the state of a running node."
    )
    add_place(parser, nats=True)
    add_cluster(parser)
    parser = commands.add_parser(
        "roster",
        run=roster,
        help="show the record layout of a compiled kind",
        description="Shows the record layout of a compiled kind, and how many agents of it there are.",
    )
    parser.add_argument("kind", metavar="KIND", help="a compiled kind of the fleet, such as Drone")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "letters",
        run=letters,
        help="show inputs that failed, retry or drop them",
        description=(
            "Lists the dead letters of a running node, and of the other nodes on its bus: inputs on which an agent "
            "failed. Those of another node have its name behind the id, and are retried and dropped there."
        ),
        epilog=LETTERS_EXAMPLES,
    )
    parser.add_argument("action", choices=("list", "retry", "drop"), nargs="?", default="list")
    parser.add_argument("letter", metavar="ID", nargs="?", help="which dead letter, as listed")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "commands",
        run=list_commands,
        help="show commands on their way to agents of other nodes",
        description="Lists commands that a running node has sent on to agents of other nodes, and their last answers.",
    )
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "resume",
        run=resume,
        help="resume a stopped agent",
        description="Resumes an agent that its supervision has stopped.",
    )
    parser.add_argument("agent", metavar="KIND/NAME")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "stop",
        run=stop,
        help="drain and stop a node",
        description="Lets a running node finish what it has taken and end, and waits for that.",
    )
    add_place(parser)


def status(arguments: argparse.Namespace, output: Output) -> int:
    """Says where a node, a fleet on several workers, or a cluster stands."""
    if arguments.nats is not None and arguments.fleet is None:
        return status_of_cluster(arguments, output)
    if arguments.name is not None or arguments.watch:
        raise ConfigError("NAME and --watch are for a cluster: give --nats URL, and no --fleet; or see stigmergy top")
    found = ask(find_place(arguments), StatusRequest())
    is_cluster = found.is_on_workers
    if found.is_unanswered:
        raise NotRunning(f"no worker of the fleet {found.fleet!r} answers at {found.journal}; {WORKER_HINT}")
    output.document(found)
    running = f"{counted(len(found.parts), 'shard')} on" if is_cluster else f"process {found.pid}, version"
    output.line((found.fleet, NAME), f"  {running} {found.journal if is_cluster else found.version}")
    output.fields(
        [
            ("journal", f"{found.journal}, {shown_bytes(found.journal_bytes)}"),
            ("log", f"{counted(found.events, 'event')}, {_heads(found.heads)}"),
            ("agents", f"{found.agents:,}"),
            ("owed", counted(found.owed, "effect")),
            ("waiting", counted(found.waiting, "observed event")),
            ("dead letters", (f"{found.dead_letters:,}", WARN if found.dead_letters else "")),
            *_link(found.link),
            *replication_fields(found),
            *(("copy", _copy(copy)) for copy in found.copies or ()),
            *(("signer", _signer(signer)) for signer in found.signers),
        ]
    )
    if is_cluster:
        rows = _by_process(found.parts)
        output.table(("HOST", "PID", "SHARDS", "AGENTS", "EVENTS", "OWED"), rows)
    if found.stopped:
        output.table(("STOPPED", "WHY"), [((agent, BAD), why) for agent, why in found.stopped.items()])
    if resting := found.at_rest:
        output.line(("at rest", WARN), f"  {shown(resting)}: in the journal, and not among agents of this node")
    for trouble in found.troubles:
        output.line(("trouble", BAD), f"  {trouble}")
    counters = {name: count for name, count in found.counters.items() if count}
    if counters:
        output.line(("counters since the start", HEADING))
        output.fields((name, f"{count:,}") for name, count in counters.items())
    return exits.OK


def roster(arguments: argparse.Namespace, output: Output) -> int:
    """Says what a producer of batches has to know."""
    found = ask(find_place(arguments), RosterRequest(kind=arguments.kind))
    output.document(found)
    agents = sum(shard.agents for shard in found.shards)
    output.line((found.kind, NAME), f"  {counted(agents, 'agent')}, records of {found.record_bytes} bytes")
    output.table(
        ("MESSAGE", "", "FIELDS"),
        [(form.tag, "command" if form.is_command else "", _typed(form.fields)) for form in found.forms],
    )
    output.table(
        ("SHARD", "AGENTS", "GENERATION", "CHECK"),
        [(f"{one.shard}", f"{one.agents:,}", f"{one.generation:,}", one.check) for one in found.shards],
    )
    return exits.OK


def letters(arguments: argparse.Namespace, output: Output) -> int:
    """Lists, retries or drops dead letters."""
    if (arguments.action == "list") != (arguments.letter is None):
        raise ConfigError(
            "give the ID of one letter for retry and drop, and none to list them: stigmergy letters --help"
        )
    path = find_place(arguments)
    if arguments.action == "list":
        listing = ask_list(path, LettersRequest(everywhere=True))
        for letter in listing.items:
            output.document(letter)
        rows = [
            (one.letter, (one.agent, NAME), (one.error, BAD), f"{one.type} {shown_fields(one.fields)}")
            for one in listing.items
        ]
        output.table(("ID", "AGENT", "ERROR", "INPUT") if rows else (), rows)
        if listing.is_empty:
            output.note("no dead letters: no input has failed, or all were retried or dropped")
        return listing.end(output)
    request = (
        RetryRequest(letter=arguments.letter) if arguments.action == "retry" else DropRequest(letter=arguments.letter)
    )
    answer = ask(path, request)
    output.document(answer)
    if answer.failed_again:
        output.line(
            ("failed again", BAD), f"  {answer.agent}; it is now dead letter {answer.new_letter}: see stigmergy letters"
        )
        return exits.REFUSED
    output.line(("retried" if answer.retried else "dropped", GOOD), f"  {answer.letter} of {answer.agent}")
    return exits.OK


def list_commands(arguments: argparse.Namespace, output: Output) -> int:
    """Lists commands for agents of other nodes, and tells that they have not acknowledged."""
    listing = ask_list(find_place(arguments), CommandsRequest())
    waiting: list[tuple[Any, ...]] = []
    answered: list[tuple[Any, ...]] = []
    for one in listing.items:
        output.document(one)
        told = ("pending", WARN) if one.accepted is None else ("accepted", GOOD) if one.accepted else ("refused", BAD)
        what = one.command_id or f"{one.tells:,} tell{'s' * (one.tells > 1)}"
        if one.answered:
            answered.append((what, (one.agent, NAME), told, one.answered, one.standing))
        else:
            waiting.append((what, (one.agent, NAME), one.type, told, one.asked, one.standing))
    output.table(("ID", "AGENT", "COMMAND", "ANSWER", "SINCE", "STANDING") if waiting else (), waiting)
    output.table(("ID", "AGENT", "ANSWER", "SINCE", "STANDING") if answered else (), answered)
    if listing.is_empty:
        output.note("no commands or tells are on their way to other nodes, and no command was answered within a day")
    return listing.end(output)


def resume(arguments: argparse.Namespace, output: Output) -> int:
    """Lets a stopped agent go on."""
    answer = ask(find_place(arguments), ResumeRequest(agent=arguments.agent, by=_who()))
    output.document(answer)
    output.line(("resumed", GOOD), f"  {answer.agent}")
    return exits.OK


def stop(arguments: argparse.Namespace, output: Output) -> int:
    """Ends a node, and waits until its process has ended and the journal is free."""
    path = find_socket(arguments)
    process = os.pidfd_open(ask(path, StatusRequest()).pid or 0)
    try:
        ask(path, StopRequest())
        ended, _, _ = select.select([process], [], [], STOP_WAIT_S)
    finally:
        os.close(process)
    if not ended:
        raise NotRunning(f"the node has not ended within {STOP_WAIT_S:g} s; it still finishes what it has taken")
    output.document({"stopped": True})
    output.line(("stopped", GOOD))
    return exits.OK


def _typed(fields: dict[str, str]) -> str:
    return ", ".join(f"{name} {code}" for name, code in fields.items())


def _copy(copy: CopyReply) -> Cell:
    """How far the copies in one store are."""
    if not copy.made:
        return (f"{copy.store}, none yet", BAD if copy.trouble else WARN)
    held, points = counted(copy.commits, "commit"), counted(copy.points, "point")
    text = f"{copy.store}, {held} as of {copy.made[:19]}, {points} to go back to"
    return (text, BAD if copy.trouble else GOOD)


def _link(link: LinkReply) -> list[tuple[str, Cell]]:
    """The link to the broker, of a node that has a bus."""
    if link.state == NO_BUS:
        return []
    text = f"{link.state}, {counted(link.members, 'member')}, {link.owed:,} to publish"
    text += f", {counted(link.tells, 'tell')} for other nodes" if link.tells else ""
    found: list[tuple[str, Cell]] = [
        ("link", (f"{text}; {link.why}" if link.why else text, GOOD if link.state == UP else WARN))
    ]
    if link.uplink:
        found.append(("uplink", _uplink(link.uplink)))
    return found


def _uplink(uplink: UplinkStatus) -> Cell:
    """How far the collector of the log is behind."""
    if not uplink.to:
        return ("nobody has answered yet", WARN)
    text = f"to {uplink.to}, {counted(uplink.commits_behind, 'commit')} ({uplink.seconds_behind:.0f} s) behind"
    if uplink.lost_commits:
        return (f"{text}, {counted(uplink.lost_commits, 'commit')} dropped unsent", BAD)
    return (text, BAD if uplink.trouble else GOOD)


def _heads(heads: list[HeadReply]) -> str:
    """Where the logs of all shards end, in one line."""
    positions = [head.position for head in heads]
    first, last = min(positions, default=0), max(positions, default=0)
    if len(positions) < 2:
        return f"position {last:,}"
    return f"{len(positions):,} shards, " + (
        f"each at {last:,}" if first == last else f"positions {first:,} to {last:,}"
    )


def _by_process(shards: list[ProcessReply]) -> list[list[Cell]]:
    """Of a fleet on several workers: a line for each process, and one for the shards that nobody answers for."""
    rows: list[list[Cell]] = []
    # In containers all workers may have the same number; a worker of an earlier version names no host.
    for host, pid in dict.fromkeys((one.host, one.pid) for one in shards):
        own = [one for one in shards if (one.host, one.pid) == (host, pid)]
        numbers = ranges([shard for one in own for shard in range(one.first_shard, one.last_shard + 1)])
        if pid is None:
            rows.append([("nobody", BAD), "", numbers, "", "", ""])
        else:
            counts = (f"{sum(getattr(one, key) for one in own):,}" for key in ("agents", "events", "owed"))
            rows.append([(host or "?", NAME), str(pid), numbers, *counts])
    return rows


def _signer(signer: SignerReply) -> str:
    name = fingerprint(PublicKey(signer.algorithm, bytes.fromhex(signer.public_key)))
    if signer.revoked_after is not None:
        return f"{name}, revoked after {signer.revoked_after}"
    return f"{name}, signs now" if signer.signs_now else name


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"
