"""`stigmergy send`, `observe`, `state`, `agents`, `explain` and `where`: commands and questions to agents.

A running node answers: it knows the classes and reads the fields by their types. Only the state of an agent whose node
is stopped is read from the journal, which needs the user's classes.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import time
from typing import Any

import msgspec

from stigmergy.app.fleet import inspect_all
from stigmergy.audit.history import History, Moment, read_at
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError
from stigmergy.cli.api.explain import explain_event
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, HEADING, NAME, WARN, Cell, Output, shown, shown_fields
from stigmergy.cli.display.places import (
    add_place,
    ask,
    check_fleet,
    closing_journal,
    find_fleet,
    find_journal,
    find_place,
    find_running_place,
)
from stigmergy.control.description import described_sight
from stigmergy.control.protocol import (
    AgentsRequest,
    ExplainRequest,
    ObserveRequest,
    SendRequest,
    StateRequest,
    WhereRequest,
)
from stigmergy.control.replies import StateReply
from stigmergy.shard.homes import plan_at

WAIT_S = 10.0
_FIELD = re.compile(r"(?P<name>[^\W\d]\w*)(?P<sign>:?=)(?P<value>.*)", re.DOTALL)
SEND_EXAMPLES = """examples:
  stigmergy send Drone/D-17 StartMission mission=M1
  stigmergy send Drone/D-17 FlyTo 'waypoints:=[[52.1, 4.3], [52.2, 4.4]]' urgent=true
  stigmergy send Drone/D-17 StartMission mission=M1 --command-id order-4711    done once, however often it is sent

A value is read as the field's type needs it; name:=VALUE gives JSON. The exit code is 1 if the agent refuses.
"""
OBSERVE_EXAMPLES = """example:
  stigmergy observe Drone/D-17 BatteryMeasured percent=12.5
"""
STATE_EXAMPLES = """examples:
  stigmergy state Drone/D-17
  stigmergy state Drone/D-17 --at 4711                      after the commit at this position
  stigmergy state Drone/D-17 --at 2026-11-15T08:00:00Z      after the last commit by then
"""

AGENTS_EXAMPLES = """examples:
  stigmergy agents Drone
  stigmergy agents Drone --where 'battery<20' --where mission=M1    all conditions must hold: =, !=, <, <=, >, >=
"""


def add_commands(commands: Any) -> None:
    """Adds the commands about agents."""
    parser = commands.add_parser(
        "send",
        run=send,
        help="send an agent a command and wait for its answer",
        description="Sends an agent of a running node a command, and waits until the answer is durable.",
        epilog=SEND_EXAMPLES,
    )
    parser.add_argument("agent", metavar="KIND/NAME", help="the agent, such as Drone/D-17")
    parser.add_argument("command", metavar="COMMAND", help="which command, such as StartMission")
    parser.add_argument("fields", metavar="FIELD=VALUE", nargs="*", help="its fields")
    parser.add_argument("--command-id", metavar="ID", help="the same id again gets the same answer and does nothing")
    parser.add_argument(
        "--wait", metavar="S", type=float, default=WAIT_S, help="seconds for an agent elsewhere; 50 at most"
    )
    parser.add_argument("--no-wait", action="store_true", help="do not wait for an agent on another node")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "observe",
        run=observe,
        help="send an agent an observed event",
        description="Sends an agent of a running node an observed event; it cannot be refused.",
        epilog=OBSERVE_EXAMPLES,
    )
    parser.add_argument("agent", metavar="KIND/NAME", help="the agent, such as Drone/D-17")
    parser.add_argument("event", metavar="EVENT", help="which event, such as BatteryMeasured")
    parser.add_argument("fields", metavar="FIELD=VALUE", nargs="*", help="its fields")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "state",
        run=show_state,
        help="show an agent's state, now or in the past",
        description="Shows an agent's durable state, of a running node or from the journal of a stopped one.",
        epilog=STATE_EXAMPLES,
    )
    parser.add_argument("agent", metavar="KIND/NAME", help="whose state, such as Drone/D-17")
    parser.add_argument("--at", metavar="TIME|POSITION", help="as it was then; a time needs its zone, such as Z")
    add_place(parser, nats=True)

    parser = commands.add_parser(
        "agents",
        run=list_agents,
        help="list agents, by conditions on their states",
        description="Lists the agents of a running node or of a fleet on workers, with their states.",
        epilog=AGENTS_EXAMPLES,
    )
    parser.add_argument("kind", metavar="KIND", nargs="?", help="only agents of this kind, such as Drone")
    parser.add_argument("--where", metavar="CONDITION", action="append", default=[], help="FIELD=VALUE; repeatable")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="so many at most (100)")
    parser.add_argument("--after", metavar="KIND/NAME", default="", help="begin behind this one")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "explain",
        run=explain,
        help="show how an agent came to be as it is, or the chain behind an event",
        description="Shows the inputs, events and effects that led to an agent's state, oldest first; or, of an event, "
        "the chain from what was sensed over the model that was asked to what was done.",
        epilog="examples:\n  stigmergy explain Drone/D-17 --limit 5\n"
        "  stigmergy explain 412.1           the event at this place, as `stigmergy log show` writes it\n",
    )
    parser.add_argument("agent", metavar="KIND/NAME|EVENT", help="an agent, or the place of an event: 412.1, 3:412.1")
    parser.add_argument("--at", metavar="POSITION", type=int, help="as it was after the commit at this position")
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="so many entries of its log (20)")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "where",
        run=where,
        help="say which node runs an agent, and why",
        description="Says which node runs an agent, as far as the node that is asked knows, and why.",
        epilog="examples:\n  stigmergy where Drone/D-17\n  stigmergy where ground/Pilot/D-17\n",
    )
    parser.add_argument("agent", metavar="KIND/NAME", help="which agent, such as Drone/D-17")
    add_place(parser, nats=True)


EVENT_PLACE = re.compile(r"(?:(\d{1,9}):)?(\d{1,18})(?:\.(\d{1,9}))?", re.ASCII)
"""Where an event is in the log."""


def send(arguments: argparse.Namespace, output: Output) -> int:
    """Sends a command."""
    fields, texts = read_fields(arguments.fields)
    # The id is made here, so that a command whose answer was lost can be sent again.
    command_id = arguments.command_id or new_command_id(time.time_ns(), secrets.token_bytes(RANDOM_BYTES))
    place = find_place(arguments)
    request = SendRequest(
        agent=arguments.agent, command=arguments.command, fields=fields, texts=texts, command_id=command_id
    )
    # As OpenTelemetry has it for programs that are started by others.
    request.traceparent, request.tracestate = os.environ.get("TRACEPARENT", ""), os.environ.get("TRACESTATE", "")
    request.wait_s = 0.0 if arguments.no_wait else arguments.wait
    doubt = f"whether the command was taken is unknown: send it again with --command-id {command_id}"
    answer = ask(place, request, doubt=doubt)
    asked = {"agent": arguments.agent, "command": arguments.command, "command_id": command_id}
    output.document({**asked, **msgspec.to_builtins(answer)})
    if answer.pending is True:
        output.line(("pending", WARN), f"  {answer.reason}")
        output.note(f"it is kept and sent on; ask again with --command-id {command_id}, or see stigmergy commands")
        return exits.OK if arguments.no_wait else exits.NOT_RUNNING
    if answer.accepted:
        output.line(("accepted", GOOD), f"  {arguments.agent} at position {answer.position}")
        return exits.OK
    output.line(("refused", BAD), f"  {answer.reason}")
    return exits.REFUSED


def observe(arguments: argparse.Namespace, output: Output) -> int:
    """Sends an observed event."""
    fields, texts = read_fields(arguments.fields)
    place = find_place(arguments)
    ask(place, ObserveRequest(agent=arguments.agent, event=arguments.event, fields=fields, texts=texts))
    output.document({"agent": arguments.agent, "event": arguments.event, "observed": True})
    output.line(("observed", GOOD), f"  {arguments.agent}")
    return exits.OK


def read_fields(arguments: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Splits FIELD=VALUE and FIELD:=JSON into values and texts."""
    fields: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for argument in arguments:
        found = _FIELD.fullmatch(argument)
        if found is None:
            raise ConfigError(
                f"{argument!r} is not FIELD=VALUE; write it like mission=M1, or mission:='\"M1\"' as JSON"
            )
        name, value = found["name"], found["value"]
        if name in fields or name in texts:
            raise ConfigError(f"the field {name!r} is given twice; give it once")
        if found["sign"] == "=":
            texts[name] = value
            continue
        try:
            fields[name] = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{name}:={value} is not JSON ({error}); for a plain text write {name}=…") from None
    return fields, texts


def show_state(arguments: argparse.Namespace, output: Output) -> int:
    """Shows the state."""
    moment = Moment() if arguments.at is None else read_at(arguments.at)
    place = find_running_place(arguments)
    if place is not None:
        seen = ask(place, StateRequest(agent=arguments.agent, at=arguments.at))
    else:
        seen = _from_journal(arguments, moment, output)
    _show(seen, output)
    return exits.OK


def list_agents(arguments: argparse.Namespace, output: Output) -> int:
    """Lists agents."""
    request = AgentsRequest(kind=arguments.kind, where=arguments.where, limit=arguments.limit, after=arguments.after)
    found = ask(find_place(arguments), request)
    output.document(found)
    rows: list[tuple[Cell, Cell]] = []
    for one in found.agents:
        fields = shown_fields({name: value for name, value in one.state.items() if name != "id"})
        rows.append(((one.agent, BAD if one.stopped else NAME), fields))
    output.table(("AGENT", "STATE") if rows else (), rows)
    if not rows:
        output.note("no such agents")
    if found.next is not None:
        output.note(f"there are more: --after {found.next}")
    for part in found.missing:
        output.note(f"not shown: {part.why}", BAD)
    return exits.NOT_RUNNING if found.missing else exits.OK


def explain(arguments: argparse.Namespace, output: Output) -> int:
    """Shows how an agent came to be as it is, or the chain behind an event."""
    if (place := EVENT_PLACE.fullmatch(arguments.agent)) is not None:
        return explain_event(arguments, int(place[1] or 0), int(place[2]), int(place[3] or 0), output)
    request = ExplainRequest(agent=arguments.agent, position=arguments.at, limit=arguments.limit)
    found = ask(find_place(arguments), request)
    output.document(found)
    for entry in found.entries:
        cause = entry.cause.command or entry.cause.source
        said: list[Cell] = [(f"{entry.position:>8}", HEADING), f"  {entry.time}  ", (entry.type, NAME)]
        said.append(f" {shown_fields(entry.fields)}  because of {cause}")
        output.line(*said, *([] if entry.refused is None else [(f"  refused: {entry.refused}", BAD)]))
        for effect in entry.effects:
            state: Cell = ("settled", GOOD) if effect.settled else ("owed", WARN)
            to = f" to {effect.to}" if effect.to else ""
            output.line(f"{'':>10}-> {effect.sink}{to}: {effect.type} {shown_fields(effect.fields)} ", state)
    output.line((found.agent, NAME), (f"  position {found.position}", HEADING))
    output.fields((name, shown(value)) for name, value in found.state.items())
    return exits.OK


def where(arguments: argparse.Namespace, output: Output) -> int:
    """Says which node runs an agent."""
    found = ask(find_place(arguments), WhereRequest(agent=arguments.agent))
    output.document(found)
    node = found.node or (f"shard-{found.shard}" if found.owner else "this node" if found.here else "no node")
    output.line((found.agent, NAME), "  ", (node, GOOD if found.online else WARN), f"  {found.why}")
    return exits.OK if found.here or found.node is not None else exits.REFUSED


def _from_journal(arguments: argparse.Namespace, moment: Moment, output: Output) -> StateReply:
    fleet = find_fleet(arguments)
    url = find_journal(arguments)
    with closing_journal(inspect_all(url)) as journal:
        check_fleet(journal, url, fleet)
        sight = History(journal, fleet.plans, fleet.settings.limits, output.note, fleet.homes).look(
            arguments.agent, moment
        )
        return described_sight(arguments.agent, sight, plan_at(fleet.plans, arguments.agent))


def _show(seen: StateReply, output: Output) -> None:
    output.document(seen)
    where = f"  position {seen.position}" + (f", {seen.time}" if seen.time else "")
    output.line((seen.agent, NAME), (where, HEADING))
    output.fields((name, shown(value)) for name, value in seen.state.items())
    if seen.stopped:
        output.line(("stopped", BAD), f"  {seen.stopped}; go on with: stigmergy resume {seen.agent}")
    if not seen.known:
        output.note(f"{seen.agent} had had no input by then; this is the state it would begin with", "yellow")
