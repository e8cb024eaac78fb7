"""The gRPC service of a fleet: its methods, their messages, and in these the fleet's own commands, events and states.

The messages of the service have their numbers here, 1 to 15; the fleet's types follow from 16 on, with those of
`numbers`. What a client has no type for it may say as JSON, and gets as JSON: a message of the framework, an event of a
newer version, the state of an agent that it knows only by its address. The Python client speaks JSON only, and needs
nothing but the name of the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stigmergy.agents.messages import Command, Event, Message, spec_of
from stigmergy.agents.text import messages_of
from stigmergy.base.errors import ConfigError
from stigmergy.node.declaration import Declaration
from stigmergy.proto.descriptors import Method, describe, message_classes, write_proto
from stigmergy.proto.numbers import FORMAT, FieldNumbers, describe_changes, read_numbers, settle
from stigmergy.proto.shapes import (
    BOOL,
    FLOAT,
    TEXT,
    Kind,
    Label,
    ProtoField,
    ProtoShape,
    Scalar,
    ShapeBook,
    Style,
    Timestamp,
    snake,
)

SERVICE = "Fleet"
FIRST_NUMBER = 16
OURS = "stigmergy."
"""So begin the names of the framework's own messages."""
UINT32, UINT64 = Scalar("uint32", int), Scalar("uint64", int)
METHODS = (
    Method("Send", "SendRequest", "SendReply", "Gives an agent a command, and waits for its durable answer."),
    Method("Observe", "ObserveRequest", "ObserveReply", "Tells an agent what was observed."),
    Method("GetAgent", "GetAgentRequest", "GetAgentReply", "An agent's durable state, now or in the past."),
    Method("ListAgents", "ListAgentsRequest", "ListAgentsReply", "A page of agents with their states, by address."),
    Method("QueryView", "QueryViewRequest", "QueryViewReply", "A page of the rows of a view."),
    Method("ReadLedger", "ReadLedgerRequest", "ReadLedgerReply", "Entries of a ledger, in their order."),
    Method("Watch", "WatchRequest", "WatchReply", "Events as they become durable.", streams=True),
)
ABOUT = """\
The gRPC service of the fleet {fleet!r}, made by `stigmergy proto`. Do not edit: change the classes and make it anew.
The field numbers are kept in {numbers}, which belongs into version control."""


def service_shapes() -> dict[str, ProtoShape]:
    """The messages of the service, without the types of any fleet."""
    json = _plain("Json", "A message by its name or tag, with its fields as a JSON object.", name=TEXT, fields=TEXT)
    about = "The same command_id again gets the same answer and does nothing."
    send = _choosing("SendRequest", "command", about, agent=TEXT, command_id=TEXT, _json=json)
    about = "Accepted; a refusal is FAILED_PRECONDITION. Give `after` to a view."
    sent = _plain("SendReply", about, position=UINT64, after=TEXT)
    observe = _choosing("ObserveRequest", "event", agent=TEXT, _json=json)
    about = "`known`: it had an input. `stopped`: why it is stopped."
    where = {"shard": UINT32, "position": UINT64}
    agent: dict[str, Kind] = {"agent": TEXT, "known": BOOL, **where, "time": Timestamp(), "stopped": TEXT}
    state = _choosing("GetAgentReply", "state", about, **agent, _json=TEXT)
    about = "`after` goes on behind it. A reply without an agent has no event; `missing`: nodes with logs of their own."
    event: dict[str, Kind] = {"after": TEXT, "agent": TEXT, "type": TEXT, "time": Timestamp(), **where, "index": UINT32}
    watched = _choosing("WatchReply", "event", about, **event, _json=json, missing=[TEXT])
    row = _choosing("ViewRow", "row", _json=TEXT)
    made = (
        json,
        send,
        sent,
        observe,
        _plain("ObserveReply", "It is kept as its type promises."),
        _plain(
            "GetAgentRequest", "`at` is a position or a time: 2026-11-15T08:00:00Z.", agent=TEXT, at=TEXT, as_json=BOOL
        ),
        state,
        _plain(
            "ListAgentsRequest",
            "`where` has conditions on fields of the state: battery<20.",
            kind=TEXT,
            where=[TEXT],
            limit=UINT32,
            cursor=TEXT,
            as_json=BOOL,
        ),
        _plain(
            "ListAgentsReply",
            "`next` is the next cursor. `missing`: shards and nodes without an answer.",
            agents=[state],
            next=TEXT,
            missing=[TEXT],
        ),
        _plain(
            "WatchRequest",
            "Begins now, behind the `after` of an earlier reply, or at a time. `area`: its least and largest corner.",
            kinds=[TEXT],
            types=[TEXT],
            agents=[TEXT],
            after=TEXT,
            since=Timestamp(),
            as_json=BOOL,
            of_node=TEXT,
            area=[FLOAT],
        ),
        watched,
        _plain(
            "QueryViewRequest",
            "`after` has positions to wait for: that of a SendReply, or Drone/D-17:41.",
            view=TEXT,
            where=[TEXT],
            order=[TEXT],
            limit=UINT32,
            cursor=TEXT,
            after=[TEXT],
            within_s=FLOAT,
            as_json=BOOL,
            of_node=TEXT,
        ),
        row,
        _plain(
            "QueryViewReply",
            "`next` is the next cursor. `missing`: nodes with logs of their own.",
            rows=[row],
            next=TEXT,
            missing=[TEXT],
        ),
        *_ledger_shapes(),
    )
    return {shape.name: shape for shape in made}


def _ledger_shapes() -> tuple[ProtoShape, ...]:
    about = "`writer` is the key of the node that has entered it, as hex digits."
    named: dict[str, Kind] = {"position": UINT64, "id": TEXT, "type": TEXT, "proposer": TEXT, "writer": TEXT}
    entry = _choosing("LedgerEntry", "entry", about, **named, _json=TEXT)
    return (
        _plain(
            "ReadLedgerRequest",
            "`after` is a position; `latest`: the last ones; `fresh`: with all that was entered before this call.",
            ledger=TEXT,
            after=UINT64,
            limit=UINT32,
            latest=BOOL,
            fresh=BOOL,
            as_json=BOOL,
        ),
        entry,
        _plain("ReadLedgerReply", "`position`: how far it was read.", entries=[entry], position=UINT64),
    )


def _plain(name: str, about: str, /, **fields: Kind | Sequence[Kind]) -> ProtoShape:
    """A message whose fields have the numbers from 1 on, in order; a list is repeated, `_name` is one of several."""
    shape = ProtoShape(name, Style.STRUCT, about)
    for number, (called, kind) in enumerate(fields.items(), start=1):
        form = Label.MEMBER if called.startswith("_") else Label.PLAIN if isinstance(kind, Kind) else Label.MANY
        one = kind if isinstance(kind, Kind) else kind[0]
        shape.fields.append(ProtoField(name=called.lstrip("_"), kind=one, form=form, number=number))
    return shape


def _choosing(name: str, oneof: str, about: str = "", /, **fields: Kind | Sequence[Kind]) -> ProtoShape:
    """A message that has one of the fleet's types."""
    shape = _plain(name, about, **fields)
    shape.first_number, shape.oneof = FIRST_NUMBER, oneof
    return shape


def package_of(fleet: str) -> str:
    """The protobuf package of a fleet: its name, with what protobuf allows in it."""
    name = re.sub(r"[^a-z0-9_]", "_", snake(fleet))
    return name if name[0].isalpha() else f"fleet_{name}"


class FleetProto:
    """The service of one fleet with its types, ready to use once it has numbers."""

    def __init__(self, fleet: Declaration, kept: FieldNumbers | None, reserve: Sequence[str] = ()) -> None:
        """Raises DefinitionError for a type without a mapping, ConfigError for a change that breaks clients."""
        self.fleet = fleet.name
        self.package = package_of(fleet.name)
        self.book = ShapeBook()
        for shape in service_shapes().values():
            self.book.add(shape)
        plans = fleet.plans.values()
        commands = _distinct(message for plan in plans for message in messages_of(plan, Command))
        events = _distinct(message for plan in plans for message in messages_of(plan, Event))
        self.commands = self._members("SendRequest", commands)
        """The fields of SendRequest with the tags of their commands."""
        self.events = self._members("ObserveRequest", events)
        self.watched = dict(self._members("WatchReply", events).values())
        """The fields of WatchReply by the tags of their events."""
        self.states: dict[str, ProtoField] = {}
        """The fields of GetAgentReply by kind."""
        for plan in plans:
            self.states[plan.kind] = self._read_only("GetAgentReply", plan.kind, plan.cls, f"{plan.kind}State")
        self.rows: dict[str, ProtoField] = {}
        """The fields of ViewRow by view."""
        for view in fleet.views:
            self.rows[view.__name__] = self._read_only("ViewRow", view.__name__, view, f"{view.__name__}Row")
        entries = _distinct(ledger.entry for ledger in fleet.ledgers.values())
        self.entries = dict(self._members("LedgerEntry", entries).values())
        """The fields of LedgerEntry by the tags of their entries."""
        self.numbers = settle(self.book, fleet.name, kept, reserve)

    def _read_only(self, owner: str, called: str, cls: type, name: str) -> ProtoField:
        field = ProtoField(name=snake(called), kind=self.book.state(cls, name), form=Label.MEMBER)
        self.book.shapes[owner].fields.append(field)
        return field

    def _members(self, owner: str, messages: Sequence[type[Message]]) -> dict[str, tuple[str, ProtoField]]:
        found: dict[str, tuple[str, ProtoField]] = {}
        for message in messages:
            spec = spec_of(message)
            name = spec.name.replace(".", "_")
            shape = self.book.message(message, name if spec.version == 1 else f"{name}V{spec.version}")
            field = ProtoField(name=snake(shape.name), kind=shape, form=Label.MEMBER)
            found[field.name] = (spec.tag, field)
            self.book.shapes[owner].fields.append(field)
        return found

    def describe(self) -> Any:
        """The descriptor of the file."""
        return describe(self.book, self.numbers, self.package, SERVICE, METHODS)

    def text(self, numbers_name: str) -> str:
        """The .proto file."""
        about = ABOUT.format(fleet=self.fleet, numbers=numbers_name)
        return write_proto(self.book, self.describe(), METHODS, about)


def numbers_path(folder: Path, fleet: str) -> Path:
    """Where the field numbers of a fleet are kept: beside its code."""
    return folder / f"{package_of(fleet)}.proto.lock"


def open_service(fleet: Declaration, path: Path) -> FleetProto:
    """The service with the numbers in this file. Raises ConfigError where it lacks some: a server must not invent any,
    for the next one would invent others. Those of the service's own fields are in this module."""
    kept = read_numbers(path, fleet.name)
    made = f"run stigmergy proto for this fleet, and commit {path.name}"
    if kept is None:
        raise ConfigError(f"there are no field numbers at {str(path)!a}; {made}")
    service = FleetProto(fleet, kept)
    ours = {f"{shape.name}.{field.name}" for shape in service_shapes().values() for field in shape.fields}
    if changes := [one for one in describe_changes(kept, service.numbers) if one.partition(":")[0] not in ours]:
        raise ConfigError(f"{path.name} is older than the classes of the fleet ({changes[0]}); {made}")
    return service


def plain_service(fleet: str) -> tuple[str, dict[str, Any]]:
    """The package of a fleet and the classes of the service's own messages: for a client that speaks JSON."""
    book, package = ShapeBook(), package_of(fleet)
    for shape in service_shapes().values():
        book.add(shape)
    numbers = settle(book, fleet, FieldNumbers(FORMAT, fleet))
    return package, message_classes(describe(book, numbers, package, SERVICE, METHODS))[1]


def _distinct(messages: Iterable[type[Message]]) -> list[type[Message]]:
    """Each once, without ours: those go and come as JSON."""
    return [message for message in dict.fromkeys(messages) if not spec_of(message).name.startswith(OURS)]
