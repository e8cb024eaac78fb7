"""The OpenAPI 3.1 document of a fleet: every command, event, state and error, from the fleet's own types.

msgspec writes the JSON Schemas. A command has a path of its own for each agent kind, so that a page or a generated
client knows its fields. What has no schema, such as a shared field, is any JSON value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.messages import Command, Event, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.agents.view import View, plan_of
from stigmergy.control import replies
from stigmergy.node.declaration import Declaration
from stigmergy.serve import api
from stigmergy.serve.events import StreamedEvent
from stigmergy.serve.http import HttpRoute
from stigmergy.serve.problems import HttpProblem
from stigmergy.serve.streams import StreamEnded

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
TIME = "^20[0-9][0-9]-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T(0[0-9]|1[0-9]):[0-5][0-9]:[0-5][0-9]Z$"
MOMENT = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 10**15}, {"type": "string", "pattern": TIME}]}
SIGNS = "(=|!=|<|<=|>|>=)"
QUERIES: Mapping[str, Sequence[tuple[str, str, Json]]] = {
    "/v1/agents": (
        ("kind", "only agents of this kind", {}),
        ("where", "a condition on the state, such as battery<20; all must hold", {}),
        ("limit", "so many at most", {"type": "integer", "minimum": 1, "maximum": 1000}),
        ("cursor", "the `next` of the page before", {"type": "string"}),
    ),
    "/v1/agents/{kind}/{name}": (("at", "a position of the agent's shard, or a time with its zone", MOMENT),),
    "/v1/agents/{kind}/{name}/events": (
        ("after", "the `next` of the page before", {"type": "string", "pattern": "^[0-9]{1,15}\\.[0-9]{1,5}$"}),
        ("limit", "so many at most", {"type": "integer", "minimum": 1, "maximum": 1000}),
        ("type", "only entries of this type", {"type": "string"}),
    ),
    "/v1/agents/{kind}/{name}/explain": (
        ("position", "as it was after this commit", {"type": "integer", "minimum": 0}),
        ("limit", "so many entries", {"type": "integer", "minimum": 1, "maximum": 1000}),
    ),
    "/v1/events": (
        ("kind", "only events of agents of this kind", {}),
        ("type", "only events of this type", {"type": "array", "items": {"type": "string"}}),
        ("agent", "only events of this agent", {"type": "array", "items": {"type": "string"}}),
        ("area", "only events in this box: its least corner and its largest", {"type": "string"}),
        ("after", "behind this id, like Last-Event-ID", {"type": "string"}),
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
    "/v1/agents/{kind}/{name}/{command}": api.AcceptedCommand,
    "/v1/letters": api.Letters,
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
    "409": "the agent has refused",
    "410": "retention has dropped this part of the log",
    "413": "too large",
    "415": "the body must be JSON",
    "421": "the agent runs elsewhere, or the host is not ours",
    "422": "a field is wrong",
    "429": "too much at present",
    "500": "a bug of this server",
    "503": "nobody answers",
    "504": "whether it was done is not known",
}


def describe_api(fleet: Declaration, routes: Sequence[HttpRoute], version: str) -> Json:
    """The whole document."""
    schemas = _Schemas()
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
        if route.method in ("GET", "POST") and route.is_described:
            for path, operation in _operations(fleet, route, schemas):
                document["paths"].setdefault(path, {})[route.method.lower()] = operation
    document["x-events"] = _events(fleet, schemas)
    return document


class _Schemas:
    """The named schemas of a document, filled as they are needed."""

    def __init__(self) -> None:
        self.all: Json = {}

    def of(self, kind: Any) -> Json:
        """A reference to the schema of a type, or the schema itself of one that has no name."""
        try:
            (schema,), named = msgspec.json.schema_components([kind], ref_template=REFERENCE)
        except TypeError:
            return {}
        for one, found in named.items():
            self.all.setdefault(one, found)
        return schema

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
        return {"$ref": REFERENCE.format(name=name)}


def _operations(fleet: Declaration, route: HttpRoute, schemas: _Schemas) -> list[tuple[str, Json]]:
    """The operations of a route: one for each view, agent kind, and command of it, where the path names them."""
    if "{view}" in route.pattern:
        return [_view_operation(fleet, route, schemas, view) for view in fleet.views]
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
    given: list[tuple[str, str, Json]] = [
        (column.name, "rows in which it has this value", {"type": "string"}) for column in plan.columns
    ]
    given += [("limit", "so many at most", {"type": "integer", "minimum": 1, "maximum": 1000})]
    given += [
        ("where", "a condition, such as active>=5", {"type": "string"}),
        ("order", "a field to sort by; -active from high to low", {"type": "string"}),
        ("cursor", "the `next` of the page before", {"type": "string"}),
        ("after", "wait until the view has seen this: the `after` of a command", {"type": "string"}),
        ("within_s", "so long at most", {"type": "integer", "minimum": 0, "maximum": 30}),
    ]
    for name, about, schema in given:
        operation["parameters"].append({"name": name, "in": "query", "description": about, "schema": schema})
    operation["x-row"] = schemas.of(view)
    return route.pattern.replace("{view}", plan.name), operation


def _operation(fleet: Declaration, route: HttpRoute, schemas: _Schemas, plan: AgentPlan | None) -> Json:
    words = [word for word in route.pattern.replace("{", "").replace("}", "").split("/")[1:] if word != "kind"]
    parameters: list[Json] = [NAME] if "{name}" in route.pattern else []
    if "{letter}" in route.pattern:
        letter = {"type": "string", "pattern": "^[0-9]{1,4}\\.[0-9]{1,9}\\.[0-9]{1,9}$"}
        parameters.append({"name": "letter", "in": "path", "required": True, "schema": letter})
    fields = dict.fromkeys(name for one in fleet.plans.values() for name in one.cls.__struct_fields__)
    condition = {"type": "string", "pattern": f"^({'|'.join(fields)}){SIGNS}"}
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
        "responses": {"200": _answer(route, schemas), **_problems(route)},
    }
    if route.scope:
        operation["security"] = [{"token": []}, {}]
    if route.pattern == "/v1/observations":
        one = _observation(fleet, schemas)
        many = {"type": "array", "items": schemas.of(api.Observation), "maxItems": api.BATCH_COUNT_MAX}
        operation["requestBody"] = _json_body({"anyOf": [one, many]}, required=True)
    return operation


def _answer(route: HttpRoute, schemas: _Schemas) -> Json:
    if route.pattern == "/v1/events":
        schemas.of(StreamedEvent)
        schemas.of(StreamEnded)
        return {"description": route.about, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    if route.pattern == "/v1/observations":
        schema = {"anyOf": [schemas.of(api.Observed), schemas.of(api.ObservedBatch)]}
    else:
        schema = schemas.of(ANSWERS[route.pattern])
    return {"description": route.about, "content": {"application/json": {"schema": schema}}}


def _problems(route: HttpRoute) -> Json:
    if not route.scope:
        return {status: _problem(status) for status in ("503",)} if route.pattern == "/readyz" else {}
    left_out = {"409", "415", "422"} if route.method == "GET" else {"410"}
    return {status: _problem(status) for status in PROBLEMS if status not in left_out}


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
