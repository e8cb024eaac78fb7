"""The OpenAPI 3.1 document of a fleet: every command, event, state and error, from the fleet's own types.

msgspec writes the JSON Schemas. A command has a path of its own for each agent kind, so that a page or a generated
client knows its fields, and so have the state and the log of an agent, and the rows of a view. What has no schema, such
as a shared field, is any JSON value. Names of schemas: `Drone.StartMission` has the fields of a message,
`Drone.agent_state` those of a state, `ZoneLoad.view_row` those of a row; `FleetEvent` is an event of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.messages import Command, Event, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.agents.view import HIDDEN, View, plan_of
from stigmergy.audit.listing import LogEntry
from stigmergy.control import replies
from stigmergy.control.view_service import WITHIN_S_MAX
from stigmergy.ledgers.records import ShownLedger
from stigmergy.node.declaration import Declaration
from stigmergy.serve import api
from stigmergy.serve.blobs import PutBlob
from stigmergy.serve.events import StreamedEvent
from stigmergy.serve.figures import FleetFigures
from stigmergy.serve.http import HttpRoute
from stigmergy.serve.map import MapAnswer
from stigmergy.serve.problems import HttpProblem
from stigmergy.serve.pump import StreamEnded

Json = dict[str, Any]
REFERENCE = "#/components/schemas/{name}"
NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "the name of the agent",
    "schema": {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_:@=~-][A-Za-z0-9_.:@=~-]{0,127}$"},
}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "the id of the command: with the same id it is done once",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
}
DIGEST = {
    "name": "digest",
    "in": "path",
    "required": True,
    "description": "the BLAKE3 digest of the bytes",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
BYTES = {"schema": {"type": "string", "format": "binary"}}
TIME = "^20[0-9][0-9]-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T(0[0-9]|1[0-9]):[0-5][0-9]:[0-5][0-9]Z$"
MOMENT = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 10**15}, {"type": "string", "pattern": TIME}]}
SIGNS = "(=|!=|<|<=|>|>=)"
WHOLE = "-?[0-9]{1,18}$"
OF_NODE: tuple[str, str, Json] = (
    "of_node",
    "of the log of this node on the bus, and not of the one that is asked",
    {"type": "string"},
)
QUERIES: Mapping[str, Sequence[tuple[str, str, Json]]] = {
    "/v1/agents": (
        ("kind", "only agents of this kind", {}),
        ("where", "a condition on the state, such as battery<20; all must hold", {}),
        ("limit", "so many at most", {"type": "integer", "minimum": 1, "maximum": 1000}),
        ("cursor", "the `next` of the page before", {"type": "string", "pattern": "^$|^[^/]+/."}),
        ("at", "as they were at a time with its zone, or at a position of a log of one shard", MOMENT),
    ),
    "/v1/views": (OF_NODE,),
    "/v1/agents/{kind}/{name}": (("at", "a position of the agent's shard, or a time with its zone", MOMENT),),
    "/v1/agents/{kind}/{name}/events": (
        ("after", "the `next` of the page before", {"type": "string", "pattern": "^[0-9]{1,15}\\.[0-9]{1,5}$"}),
        ("limit", "so many at most", {"type": "integer", "minimum": 1, "maximum": 1000}),
        ("type", "only entries of this type", {"type": "string"}),
    ),
    "/v1/agents/{kind}/{name}/explain": (
        ("position", "as it was after this commit", {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}),
        ("limit", "so many entries", {"type": "integer", "minimum": 1, "maximum": 1000}),
    ),
    "/v1/ledgers/{ledger}": (
        ("after", "behind this position", {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}),
        ("limit", "so many at most", {"type": "integer", "minimum": 1, "maximum": 1000}),
        ("latest", "the last ones, instead of those behind a position", {"type": "boolean"}),
        ("fresh", "all that was entered before this request, as a majority of its servers says", {"type": "boolean"}),
    ),
    "/v1/map": (("at", "a time with its zone; without it, now", {"type": "string", "pattern": TIME}),),
    "/v1/events": (
        ("kind", "only events of agents of this kind", {}),
        ("type", "only events of this type", {"type": "array", "items": {"type": "string"}}),
        ("agent", "only events of this agent", {"type": "array", "items": {"type": "string"}}),
        ("area", "only events in this box: its least corner and its largest", {"type": "string"}),
        ("after", "behind this id, like Last-Event-ID", {"type": "string"}),
        OF_NODE,
        ("since", "from this time on", {"type": "string", "format": "date-time"}),
    ),
}
"""The parameters of the query, by route; those of `kind` and `where` are made from the fleet."""
ANSWERS: Mapping[str, type[Struct]] = {
    "/healthz": api.Readiness,
    "/readyz": api.Readiness,
    "/v1/status": replies.StatusReply,
    "/v1/agents": replies.AgentsReply,
    "/v1/agents/{kind}/{name}": replies.StateReply,
    "/v1/agents/{kind}/{name}/events": api.EntriesPage,
    "/v1/agents/{kind}/{name}/explain": replies.ExplainReply,
    "/v1/map": MapAnswer,
    "/v1/agents/{kind}/{name}/{command}": api.AcceptedCommand,
    "/v1/blobs": PutBlob,
    "/v1/letters": api.Letters,
    "/v1/ledgers/{ledger}": ShownLedger,
    "/v1/views": replies.ViewsReply,
    "/v1/views/{view}": replies.ViewReply,
    "/v1/letters/{letter}/retry": replies.LetterTakenReply,
    "/v1/letters/{letter}/drop": replies.LetterTakenReply,
    "/v1/stopped/{kind}/{name}/resume": replies.ResumeReply,
}
PROBLEMS = {
    "400": "the request is wrong",
    "401": "a token is needed",
    "403": "the token does not allow this",
    "404": "there is no such thing",
    "405": "another method is needed",
    "408": "the body took too long",
    "409": "the agent has refused, or a blob has another digest",
    "410": "retention has dropped this part of the log",
    "413": "too large",
    "415": "the body must be JSON",
    "416": "the blob has no such bytes",
    "421": "the agent does not run here, or the host is not ours",
    "422": "a field is wrong",
    "429": "too much at present",
    "500": "a bug of this server",
    "502": "the store of blobs failed",
    "503": "nobody answers",
    "504": "whether it was done is not known",
    "507": "the store of blobs is full",
}


def describe_api(fleet: Declaration, routes: Sequence[HttpRoute], version: str) -> Json:
    """The whole document."""
    schemas = _Schemas(fleet)
    problem = schemas.of(HttpProblem)
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": f"Fleet {fleet.name}", "version": version or "0"},
        "paths": {},
        "components": {
            "schemas": schemas.all,
            "responses": {
                status: {"description": text, "content": {"application/problem+json": {"schema": problem}}}
                for status, text in PROBLEMS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    for route in routes:
        if route.method != "WEBSOCKET" and route.is_described:
            for path, operation in _operations(fleet, route, schemas):
                document["paths"].setdefault(path, {})[route.method.lower()] = operation
    document["x-events"] = _events(fleet, schemas)
    return document


class _Schemas:
    """The named schemas of a document, filled as they are needed."""

    def __init__(self, fleet: Declaration) -> None:
        self.all: Json = {}
        self._plans = fleet.plans

    def of(self, kind: Any) -> Json:
        """A reference to the schema of a type, or the schema itself of one that has no name."""
        try:
            (schema,), named = msgspec.json.schema_components([kind], ref_template=REFERENCE)
        except TypeError:
            return {}
        for one, component in named.items():
            self.all.setdefault(one, _bounded(component))
        found: Json = _bounded(schema)
        return found

    def message(self, kind: type[Command] | type[Event], prefix: str) -> Json:
        """A reference to the schema of a message, without the tag that it has in logs."""
        name = f"{prefix}.{kind.__name__}"
        if name not in self.all:
            reference = self.of(kind)
            found = dict(self.all.pop(reference.get("$ref", "").rpartition("/")[2], {"type": "object"}))
            found["properties"] = {key: value for key, value in found.get("properties", {}).items() if key != "type"}
            found["required"] = [key for key in found.get("required", ()) if key != "type"]
            found["additionalProperties"] = False
            found["title"] = kind.__name__
            self.all[name] = found
        return _reference(name)

    def shown(self, name: str, kind: type[Struct], about: str) -> Json:
        """A reference to the schema of a state or a row as it is told: it has all its fields."""
        fields = [field for field in msgspec.structs.fields(kind) if field.name != HIDDEN]
        self.all[name] = {
            "title": name,
            "description": about,
            "type": "object",
            "properties": {field.encode_name: self.of(field.type) for field in fields},
            "required": [field.encode_name for field in fields],
        }
        return _reference(name)

    def state(self, kind: str) -> Json:
        """A reference to the schema of the state of an agent."""
        return self.shown(f"{kind}.agent_state", self._plans[kind].cls, f"The state of an agent of the kind {kind}.")

    def derived(self, name: str, base: type[Struct], /, **properties: Json) -> Json:
        """A reference to the schema of a reply, in which these properties have types of the fleet."""
        self.of(base)
        known = self.all[base.__name__]
        self.all[name] = {**known, "title": name, "properties": {**known["properties"], **properties}}
        return _reference(name)

    def logged(self, kind: str, base: type[Struct], suffix: str, /, **properties: Json) -> list[Json]:
        """References to a schema for each event of an agent kind, in which `fields` are its own."""
        return [
            self.derived(
                f"{kind}.{event.__name__}.{suffix}",
                base,
                type={"const": spec_of(event).tag},
                fields=self.message(event, kind),
                **properties,
            )
            for event in messages_of(self._plans[kind], Event)
        ]

    def streamed(self) -> Json:
        """A reference to the schema of all events of the stream. One that is not of today's classes has any fields."""
        found = [one for kind in self._plans for one in self.logged(kind, StreamedEvent, "streamed", agent=_of(kind))]
        self.all["FleetEvent"] = {"title": "FleetEvent", "anyOf": [*found, self.of(StreamedEvent)]}
        return _reference("FleetEvent")

    def answer(self, route: HttpRoute, plan: AgentPlan | None) -> Json:
        """A reference to the schema of what a route answers with, by the types of the fleet where they are known."""
        base = ANSWERS[route.pattern.removesuffix("/{digest}")]
        if base is replies.AgentsReply:
            listed = [
                self.derived(f"{kind}.listed_agent", replies.ListedAgent, agent=_of(kind), state=self.state(kind))
                for kind in self._plans
            ]
            return self.derived("fleet.agents_page", base, agents={"type": "array", "items": {"oneOf": listed}})
        if plan is None or base not in (replies.StateReply, replies.ExplainReply, api.EntriesPage):
            return self.of(base)
        if base is api.EntriesPage:
            entries = [*self.logged(plan.kind, LogEntry, "entry", kind={"const": "event"}), self.of(LogEntry)]
            return self.derived(f"{plan.kind}.log_page", base, entries={"type": "array", "items": {"anyOf": entries}})
        name = "state_reply" if base is replies.StateReply else "explain_reply"
        return self.derived(f"{plan.kind}.{name}", base, state=self.state(plan.kind))


def _reference(name: str) -> Json:
    return {"$ref": REFERENCE.format(name=name)}


def _of(kind: str) -> Json:
    """The address of an agent of this kind."""
    return {"type": "string", "pattern": f"^{kind}/"}


def _bounded(schema: Any) -> Any:
    """A schema that says which whole numbers a log can hold."""
    if isinstance(schema, list):
        return [_bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _bounded(value) for key, value in schema.items()}
    if found.get("type") == "integer" and "enum" not in found:
        found.setdefault("minimum", -(2**63))
        found.setdefault("maximum", 2**64 - 1)
    return found


def _operations(fleet: Declaration, route: HttpRoute, schemas: _Schemas) -> list[tuple[str, Json]]:
    """The operations of a route: one for each view, agent kind, and command of it, where the path names them."""
    if "{view}" in route.pattern:
        return [_view_operation(fleet, route, schemas, view) for view in fleet.views]
    if "{ledger}" in route.pattern:
        named = [(name, _operation(fleet, route, schemas, None)) for name in fleet.ledgers]
        for name, operation in named:
            operation["operationId"] = f"ledger_{name}"
        return [(route.pattern.replace("{ledger}", name), operation) for name, operation in named]
    if "{kind}" not in route.pattern:
        return [(route.pattern, _operation(fleet, route, schemas, None))]
    found: list[tuple[str, Json]] = []
    for kind, plan in fleet.plans.items():
        path = route.pattern.replace("{kind}", kind)
        if "{command}" not in path:
            found.append((path, _operation(fleet, route, schemas, plan)))
            continue
        for command in messages_of(plan, Command):
            operation = _operation(fleet, route, schemas, plan)
            required = any(field.required for field in msgspec.structs.fields(command))
            operation["operationId"] = f"{kind}_{command.__name__}"
            operation["summary"] = (command.__doc__ or f"Send {command.__name__}").splitlines()[0]
            operation["parameters"].append(KEY)
            operation["requestBody"] = _json_body(schemas.message(command, kind), required=required)
            found.append((path.replace("{command}", command.__name__), operation))
    return found


def _view_operation(fleet: Declaration, route: HttpRoute, schemas: _Schemas, view: type[View]) -> tuple[str, Json]:
    plan = plan_of(view)
    operation = _operation(fleet, route, schemas, None)
    operation["operationId"] = f"view_{plan.name}"
    operation["summary"] = (view.__doc__ or route.about).splitlines()[0]
    operation["tags"] = ["views"]
    values = {column.name: _typed(schemas.of(plan.hints[column.name])) for column in plan.columns}
    given: list[tuple[str, str, Json]] = [
        (name, "rows in which it has this value", schema)
        for name, schema in values.items()
        if name not in api.VIEW_PARAMETERS
    ]
    given += [("limit", "so many at most", {"type": "integer", "minimum": 1, "maximum": 1000})]
    ends = [f"{name}{SIGNS}{WHOLE if schema.get('type') == 'integer' else ''}" for name, schema in values.items()]
    condition = {"type": "string", "pattern": f"^$|^({'|'.join(ends)})"}
    field = {"type": "string", "pattern": f"^$|^-?({'|'.join(values)})$"}
    given += [
        ("where", "a condition, such as active>=5; all must hold", {"type": "array", "items": condition}),
        ("order", "a field to sort by; -active from high to low", {"type": "array", "items": field, "maxItems": 1}),
        ("cursor", "the `next` of the page before", {"type": "string"}),
        ("after", "wait until the view has seen this: the `after` of a command", {"type": "string"}),
        ("within_s", "so long at most", {"type": "integer", "minimum": 0, "maximum": int(WITHIN_S_MAX)}),
        OF_NODE,
    ]
    for name, about, schema in given:
        operation["parameters"].append({"name": name, "in": "query", "description": about, "schema": schema})
    row = schemas.shown(f"{plan.name}.view_row", view, f"A row of the view {plan.name}.")
    page = schemas.derived(f"{plan.name}.view_page", replies.ViewReply, rows={"type": "array", "items": row})
    operation["responses"]["200"]["content"]["application/json"]["schema"] = page
    return route.pattern.replace("{view}", plan.name), operation


def _typed(schema: Json) -> Json:
    """How a value of this type is written in a query: as it is, or as a text that the type can read."""
    if schema.get("type") == "integer":
        return schema | {"maximum": min(schema["maximum"], 2**63 - 1)}  # as much as a column holds
    return schema if schema.get("type") in ("number", "boolean") else {"type": "string"}


def _operation(fleet: Declaration, route: HttpRoute, schemas: _Schemas, plan: AgentPlan | None) -> Json:
    words = [word for word in route.pattern.replace("{", "").replace("}", "").split("/")[1:] if word != "kind"]
    parameters: list[Json] = [NAME] if "{name}" in route.pattern else []
    if "{digest}" in route.pattern:
        parameters.append(DIGEST)
    if "{letter}" in route.pattern:
        letter = {"type": "string", "pattern": "^[0-9]{1,4}\\.[0-9]{1,9}\\.[0-9]{1,9}$"}
        parameters.append({"name": "letter", "in": "path", "required": True, "schema": letter})
    fields = dict.fromkeys(name for one in fleet.plans.values() for name in one.cls.__struct_fields__)
    condition = {"type": "string", "pattern": f"^$|^({'|'.join(fields)}){SIGNS}"}
    made = {
        "kind": {"type": "string", "enum": list(fleet.plans)},
        "where": {"type": "array", "items": condition, "maxItems": 16},
    }
    for name, about, schema in QUERIES.get(route.pattern, ()):
        parameters.append({"name": name, "in": "query", "description": about, "schema": schema or made[name]})
    operation: Json = {
        "operationId": "_".join(filter(None, [route.method.lower(), plan.kind if plan else "", *words])),
        "summary": route.about,
        "tags": [plan.kind if plan else "fleet"],
        "parameters": parameters,
        "responses": {"200": _answer(route, schemas, plan), **_problems(route)},
    }
    if route.pattern == "/v1/blobs/{digest}" and route.method == "GET":
        # No parameter: whether a range fits depends on the blob, which no schema can say.
        operation["description"] = "With the header Range: bytes=N- only the bytes from there on, to resume a download."
        operation["responses"]["206"] = operation["responses"]["200"]
    if route.scope:
        operation["security"] = [{"token": []}, {}]
    if _is_of_blobs(route) and route.method != "GET":
        operation["requestBody"] = {"content": {"application/octet-stream": BYTES}}
    if route.pattern == "/v1/observations":
        one = _observation(fleet, schemas)
        many = {"type": "array", "items": schemas.of(api.Observation), "maxItems": api.BATCH_COUNT_MAX}
        operation["requestBody"] = _json_body({"anyOf": [one, many]}, required=True)
    return operation


def _answer(route: HttpRoute, schemas: _Schemas, plan: AgentPlan | None) -> Json:
    if route.pattern in ("/v1/events", "/v1/fleet"):
        # OpenAPI 3.1 has no place for what is in a stream: the name in the description is that of a schema.
        told = schemas.streamed() if route.pattern == "/v1/events" else schemas.of(FleetFigures)
        schemas.of(StreamEnded)
        about = f"{route.about}; each `data` is a {told['$ref'].rpartition('/')[2]}"
        return {"description": about, "content": {"text/event-stream": {"schema": {"type": "string"}, "x-data": told}}}
    if _is_of_blobs(route) and route.method == "GET":
        return {"description": route.about, "content": {"*/*": BYTES}}
    if route.pattern == "/v1/observations":
        schema = {"anyOf": [schemas.of(api.Observed), schemas.of(api.ObservedBatch)]}
    else:
        schema = schemas.answer(route, plan)
    return {"description": route.about, "content": {"application/json": {"schema": schema}}}


def _problems(route: HttpRoute) -> Json:
    if not route.scope:
        return {status: _problem(status) for status in ("503",)} if route.pattern == "/readyz" else {}
    left_out = {"408", "409", "415", "422"} if route.method == "GET" else {"410", "416"}
    if "{view}" in route.pattern:
        left_out -= {"422"}
    if _is_of_blobs(route):
        left_out |= {"410", "415", "422", "504"}
    else:
        left_out |= {"416", "502", "507"}
    return {status: _problem(status) for status in PROBLEMS if status not in left_out}


def _is_of_blobs(route: HttpRoute) -> bool:
    return route.pattern.startswith("/v1/blobs")


def _problem(status: str) -> Json:
    return {"$ref": f"#/components/responses/{status}"}


def _json_body(schema: Json, *, required: bool) -> Json:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _observation(fleet: Declaration, schemas: _Schemas) -> Json:
    """One for each agent kind and event, so that the fields of each are known."""
    found: list[Json] = []
    for kind, plan in fleet.plans.items():
        for event in messages_of(plan, Event):
            fields = schemas.message(event, kind)
            required = [field.name for field in msgspec.structs.fields(event) if field.required]
            found.append(
                {
                    "type": "object",
                    "title": f"{kind}.{event.__name__}",
                    "properties": {
                        "agent": {"type": "string", "pattern": f"^{kind}/[A-Za-z0-9_-]{{1,64}}$"},
                        "event": {"const": event.__name__},
                        "fields": fields,
                    },
                    "required": ["agent", "event", *(["fields"] if required else [])],
                    "additionalProperties": False,
                }
            )
    return {"anyOf": found} if found else {"type": "object"}


def _events(fleet: Declaration, schemas: _Schemas) -> Json:
    """The fields of each event in `/v1/events`, by agent kind and tag: OpenAPI has no place for events of a stream."""
    return {
        kind: {spec_of(event).tag: schemas.message(event, kind) for event in messages_of(plan, Event)}
        for kind, plan in fleet.plans.items()
    }
