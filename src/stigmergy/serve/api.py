"""The HTTP API of a fleet: each request becomes a control request, and its reply the answer.

    POST /v1/agents/Drone/D-17/StartMission    {"mission": "M1"}    Idempotency-Key: order-4711

What is asked is checked by the fleet's own types before anybody is asked, so that an answer can name the wrong field.
Nothing of a fleet's state is kept here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from stigmergy.agents.assignment import within_fleet
from stigmergy.agents.messages import Command, Event, Message
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import fields_of, find_message
from stigmergy.agents.view import plan_of
from stigmergy.audit.history import read_at
from stigmergy.audit.listing import ENTRIES_MAX
from stigmergy.base.clock import Entropy
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError, ReadOnlyLog, StigmergyError, error_named
from stigmergy.control import protocol
from stigmergy.control.protocol import TRACE_HEADERS
from stigmergy.control.replies import MissingPart, ObservedOutcome, ViewsReply
from stigmergy.diagnostics.logger import Log
from stigmergy.node.declaration import Declaration
from stigmergy.serve.access import AccessGate, DeniedRequest
from stigmergy.serve.asker import Asker
from stigmergy.serve.http import (
    HttpAnswer,
    HttpCall,
    HttpRoute,
    HttpRoutes,
    Receive,
    Send,
    json_answer,
    number_of,
    one_of,
    problem_answer,
)
from stigmergy.serve.http import Message as AsgiMessage
from stigmergy.serve.metrics import RequestMeasures
from stigmergy.serve.problems import FieldProblem, HttpProblem, RefusedCommand, WrongFields, problem_of
from stigmergy.shard.homes import plan_at
from stigmergy.shard.tracing import read_context

R = TypeVar("R")
COMMAND_ID_CHARS_MAX = 200
BATCH_COUNT_MAX = 1_000
"""Observations in one request."""
PAGE_COUNT_MAX = 1_000
"""Entries of a log on one page."""
VIEW_PARAMETERS = ("where", "order", "limit", "cursor", "after", "within_s", "of_node")
_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
log = Log("serve")


class AcceptedCommand(Struct, frozen=True):
    """A command was accepted, durably. `after` is what to give a view so that it has seen this command."""

    agent: str
    command: str
    command_id: str
    position: int
    after: str
    accepted: bool = True


class Observation(Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody has observed, for an agent."""

    agent: str
    event: str
    fields: dict[str, Any] = {}


class Observed(Struct, frozen=True, omit_defaults=True):
    """What became of an observation of a batch: it was kept as its type promises, or the problem."""

    observed: bool
    problem: HttpProblem | None = None


class ObservedBatch(Struct, frozen=True):
    """What became of a batch, one entry for each observation, in the same order."""

    results: list[Observed]


class EntriesPage(Struct, frozen=True):
    """A page of the log of an agent, oldest first; `next` is the `after` of the next page, null at the end."""

    entries: list[Any]
    next: str | None


class Letters(Struct, frozen=True):
    """Inputs that failed, oldest first; `missing` are nodes and shards whose letters are not in it."""

    letters: list[Any]
    missing: list[MissingPart] = []


class Readiness(Struct, frozen=True, omit_defaults=True):
    """Whether this server, and for `/readyz` the fleet behind it, can be asked."""

    status: str
    missing: list[MissingPart] = []


class Api:
    """The ASGI application."""

    def __init__(
        self,
        fleet: Declaration,
        asker: Asker,
        gate: AccessGate,
        entropy: Entropy,
        routes: Sequence[HttpRoute] = (),
        past: asyncio.Lock | None = None,
    ) -> None:
        """`routes` are further ones: those of streams and of pages. `past` is held by whoever looks back: a node does
        that for one at a time, and the page asks for an agent and the map at once."""
        self.fleet = fleet
        self.asker = asker
        self.gate = gate
        self._entropy = entropy
        self._past = past or asyncio.Lock()
        self.requests = RequestMeasures()
        self.routes = HttpRoutes(
            [
                HttpRoute("GET", "/healthz", self._health, "", "This server runs"),
                HttpRoute("GET", "/readyz", self._ready, "", "The fleet behind this server answers"),
                HttpRoute("GET", "/v1/status", self._status, "read", "Where the node or the fleet stands"),
                HttpRoute("GET", "/v1/agents", self._agents, "read", "A page of agents with their states"),
                HttpRoute("GET", "/v1/agents/{kind}/{name}", self._state, "read", "The durable state of an agent"),
                HttpRoute("GET", "/v1/agents/{kind}/{name}/events", self._entries, "read", "The log of an agent"),
                HttpRoute(
                    "GET", "/v1/agents/{kind}/{name}/explain", self._explain, "read", "How it came to be as it is"
                ),
                HttpRoute("POST", "/v1/agents/{kind}/{name}/{command}", self._command, "command", "Send a command"),
                HttpRoute("POST", "/v1/observations", self._observe, "observe", "Tell agents what was observed"),
                HttpRoute("GET", "/v1/views", self._views, "read", "The views, and where each stands"),
                HttpRoute("GET", "/v1/views/{view}", self._view, "read", "A page of the rows of a view"),
                HttpRoute("GET", "/v1/ledgers/{ledger}", self._ledger, "read", "Entries of a ledger, in their order"),
                HttpRoute("GET", "/v1/letters", self._letters, "read", "Inputs that failed"),
                HttpRoute(
                    "POST", "/v1/letters/{letter}/retry", self._retry, "operate", "Give an input to its agent again"
                ),
                HttpRoute("POST", "/v1/letters/{letter}/drop", self._drop, "operate", "Give an input up"),
                HttpRoute("POST", "/v1/stopped/{kind}/{name}/resume", self._resume, "operate", "Let an agent go on"),
                HttpRoute("POST", "/v1/profile", self._profile, "operate", is_described=False),
                *routes,
            ]
        )

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, send)
        call.extra_headers = self._cors(call)
        began_ns = self.requests.now_ns()
        try:
            answer = await self._answer(call)
        except StigmergyError as error:
            answer = problem_answer(problem_of(error))
            if isinstance(error, DeniedRequest) and error.allow:
                call.extra_headers.append((b"allow", error.allow.encode()))
        except Exception as error:
            text = f"a request failed: {call.method} {'/'.join(call.segments)[:200]}"
            trace = read_context(*_trace_of(call))
            log.say("request-failed", text, error=error, trace="" if trace is None else trace.trace_id.hex())
            answer = problem_answer(problem_of(error))
        if answer is not None:
            await call.reply(answer)
            self.requests.count(answer.status, began_ns)

    async def _answer(self, call: HttpCall) -> HttpAnswer | None:
        if call.method == "OPTIONS":
            return self._preflight(call)
        route, call.parameters = self.routes.find(call.method, call.segments)
        if route.scope:
            call.caller = self.gate.admit(call.headers, call.address, call.scheme)
            scope = f"command:{call.parameters['kind']}" if route.scope == "command" else route.scope
            self.gate.check(call.caller, scope)
        return await route.handler(call)

    def _preflight(self, call: HttpCall) -> HttpAnswer:
        """What a browser asks before a page of another origin may send a command."""
        if self.gate.allowed_origin(call.headers) is None:
            raise DeniedRequest(403, "no page of another origin may ask here; --cors ORIGIN allows one")
        allowed = b"authorization, content-type, idempotency-key, last-event-id, traceparent, tracestate"
        headers = ((b"access-control-allow-methods", b"GET, POST"), (b"access-control-allow-headers", allowed))
        return HttpAnswer(b"", 204, headers=headers)

    def _cors(self, call: HttpCall) -> list[tuple[bytes, bytes]]:
        origin = self.gate.allowed_origin(call.headers)
        return [] if origin is None else [(b"access-control-allow-origin", origin), (b"vary", b"origin")]

    # ------------------------------------------------------------------ commands and observations

    async def _command(self, call: HttpCall) -> HttpAnswer:
        address, plan = self._agent(call)
        message = find_message(plan, Command, call.parameters["command"])
        fields = read_fields(await call.body(), message)
        command_id = self._command_id(call)
        request = protocol.SendRequest(agent=address, command=message.__name__, fields=fields, command_id=command_id)
        request.traceparent, request.tracestate = _trace_of(call)
        request.caller = call.caller.shown_as("http")
        try:
            reply = await self.asker.ask(request)
            if not reply.accepted:
                raise RefusedCommand(reply.reason or "refused")
        except StigmergyError as error:
            return problem_answer(problem_of(error, command_id))
        position = reply.position or 0
        after = reply.after or f"{self.fleet.homes.of(address)}:{position}"  # a node of an earlier version names no log
        return json_answer(AcceptedCommand(address, message.__name__, command_id, position, after))

    async def _observe(self, call: HttpCall) -> HttpAnswer:
        body = await call.body()
        try:
            given = msgspec.json.decode(body, type=Observation | list[Observation])
        except msgspec.DecodeError as error:
            raise WrongFields([_field_problem(error)]) from None
        if isinstance(given, Observation):
            await self._take(given, _trace_of(call))
            return json_answer(Observed(True))
        if len(given) > BATCH_COUNT_MAX:
            raise DeniedRequest(
                413, f"{len(given)} observations, {BATCH_COUNT_MAX} at most; send them in several requests"
            )
        results: list[Observed | None] = [self._problem(one) for one in given]
        asked = [one for one, wrong in zip(given, results, strict=True) if wrong is None]
        items = [protocol.ObservedItem(one.agent, one.event, one.fields) for one in asked]
        outcomes = iter((await self.asker.ask(protocol.ObserveManyRequest(items=items))).outcomes if items else ())
        return json_answer(ObservedBatch([next(map(_outcome, outcomes)) if one is None else one for one in results]))

    def _problem(self, given: Observation) -> Observed | None:
        """What is wrong with an observation of a batch, before anybody is asked."""
        try:
            self._check(given)
        except StigmergyError as error:
            return Observed(False, problem_of(error))
        return None

    def _check(self, given: Observation) -> None:
        check_fields(given.fields, find_message(self._plan_at(given.agent), Event, given.event), "/fields")

    async def _take(self, given: Observation, trace: tuple[str, str]) -> None:
        self._check(given)
        request = protocol.ObserveRequest(agent=given.agent, event=given.event, fields=given.fields)
        request.traceparent, request.tracestate = trace
        await self.asker.ask(request)

    # ------------------------------------------------------------------ questions

    async def _agents(self, call: HttpCall) -> HttpAnswer:
        query = call.query(("kind", "where", "limit", "cursor", "at"))
        at = one_of(query, "at")
        request = protocol.AgentsRequest(
            kind=one_of(query, "kind"),
            where=[text for text in query.get("where", []) if text],
            limit=number_of(query, "limit", 100),
            after=one_of(query, "cursor") or "",
            at=at,
        )
        if at is None:
            return json_answer(await self.asker.ask(request))
        read_at(at)
        async with self._past:
            return json_answer(await self._find(request, 404))

    async def _state(self, call: HttpCall) -> HttpAnswer:
        query = call.query(("at",))
        address, _ = self._agent(call)
        at = one_of(query, "at")
        request = protocol.StateRequest(agent=address, at=at)
        if at is None:
            return json_answer(await self._find(request, 404))
        read_at(at)
        async with self._past:
            return json_answer(await self._find(request, 404))

    async def _explain(self, call: HttpCall) -> HttpAnswer:
        query = call.query(("position", "limit"))
        address, _ = self._agent(call)
        position, limit = number_of(query, "position", None), _page(number_of(query, "limit", 20))
        request = protocol.ExplainRequest(agent=address, position=position, limit=limit)
        async with self._past if position is not None else nullcontext():
            return json_answer(await self._find(request, 404))

    async def _entries(self, call: HttpCall) -> HttpAnswer:
        query = call.query(("after", "limit", "type"))
        address, _ = self._agent(call)
        limit = _page(number_of(query, "limit", 100))
        position, shown = _read_cursor(one_of(query, "after"))
        # A page may end within a commit; its cursor says how many of its entries were shown.
        request = protocol.LogRequest(
            agent=address,
            first=max(position, 1),
            type=one_of(query, "type"),
            limit=min(ENTRIES_MAX, limit + shown + 1),
        )
        entries = await self.asker.items(request)
        skipped = sum(1 for entry in entries[:shown] if entry.position == position)
        page = entries[skipped : skipped + limit]
        if len(entries) <= skipped + limit or not page:
            return json_answer(EntriesPage(page, None))
        last = page[-1].position
        count = sum(1 for entry in page if entry.position == last) + (shown if last == position else 0)
        return json_answer(EntriesPage(page, f"{last}.{count}"))

    async def _views(self, call: HttpCall) -> HttpAnswer:
        query = call.query(("of_node",))
        if not self.fleet.views:
            return json_answer(ViewsReply([]))
        return json_answer(await self.asker.ask(protocol.ViewsRequest(node=one_of(query, "of_node") or "")))

    async def _view(self, call: HttpCall) -> HttpAnswer:
        """`zone=7` is short for `where=zone=7`; `after` is what a command was answered with."""
        plan = next((one for one in map(plan_of, self.fleet.views) if one.name == call.parameters["view"]), None)
        if plan is None:
            names = ", ".join(plan_of(view).name for view in self.fleet.views) or "none"
            raise DeniedRequest(404, f"{call.parameters['view'][:100]!r} is no view of this fleet; there are {names}")
        columns = [column.name for column in plan.columns if column.name not in VIEW_PARAMETERS]
        query = call.query((*VIEW_PARAMETERS, *columns))
        within_s = number_of(query, "within_s", 5)
        equal = [f"{name}={value}" for name in columns for value in query.get(name, ())]
        request = protocol.ViewRequest(
            view=plan.name,
            where=[*equal, *filter(None, query.get("where", ()))],
            order=[*filter(None, query.get("order", ()))],
            limit=_page(number_of(query, "limit", 100)),
            cursor=one_of(query, "cursor") or "",
            after=[part for text in query.get("after", ()) for part in text.split(",") if part],
            within_s=float(within_s),
            node=one_of(query, "of_node") or "",
        )
        return json_answer(await self.asker.ask(request))

    async def _ledger(self, call: HttpCall) -> HttpAnswer:
        query, name = call.query(("after", "limit", "latest", "fresh")), call.parameters["ledger"]
        check_ledger(self.fleet, name)
        request = protocol.LedgerRequest(
            ledger=name,
            after=number_of(query, "after", 0),
            limit=_page(number_of(query, "limit", 100)),
            latest=one_of(query, "latest") == "true",
            fresh=one_of(query, "fresh") == "true",
        )
        return json_answer(await self.asker.ask(request))

    async def _status(self, call: HttpCall) -> HttpAnswer:
        call.query(())
        return json_answer(await self.asker.ask(protocol.StatusRequest()))

    async def _health(self, call: HttpCall) -> HttpAnswer:
        return json_answer(Readiness("up"))

    async def _ready(self, call: HttpCall) -> HttpAnswer:
        found = await self.asker.ask(protocol.AgentsRequest(limit=1, here=True))
        return json_answer(
            Readiness("missing" if found.missing else "ready", found.missing), 503 if found.missing else 200
        )

    # ------------------------------------------------------------------ operators

    async def _letters(self, call: HttpCall) -> HttpAnswer:
        call.query(())
        missing: list[MissingPart] = []
        return json_answer(Letters(await self.asker.items(protocol.LettersRequest(everywhere=True), missing), missing))

    async def _retry(self, call: HttpCall) -> HttpAnswer:
        return json_answer(await self._find(protocol.RetryRequest(letter=call.parameters["letter"]), 404))

    async def _drop(self, call: HttpCall) -> HttpAnswer:
        return json_answer(await self._find(protocol.DropRequest(letter=call.parameters["letter"]), 404))

    async def _resume(self, call: HttpCall) -> HttpAnswer:
        address, _ = self._agent(call)
        return json_answer(await self._find(protocol.ResumeRequest(agent=address, by=call.caller.name), 409))

    async def _profile(self, call: HttpCall) -> HttpAnswer:
        query = call.query(("seconds", "worker"))
        seconds, worker = float(number_of(query, "seconds", 10)), one_of(query, "worker") or ""
        return json_answer(await self.asker.ask(protocol.ProfileRequest(seconds=seconds, worker=worker)))

    # ------------------------------------------------------------------ addresses and ids

    async def _find(self, request: protocol.Request[R], missing: int) -> R:
        """Asks for something that may not be there: a position, a dead letter, an agent that is stopped."""
        try:
            return await self.asker.ask(request)
        except ReadOnlyLog:
            raise
        except ConfigError as error:
            raise DeniedRequest(missing, str(error)) from None

    def _agent(self, call: HttpCall) -> tuple[str, AgentPlan]:
        # `yard%2FCart/c01` is the spelling of other fleets.
        address = within_fleet(f"{call.parameters['kind']}/{call.parameters['name']}", self.fleet.name)
        return address, self._plan_at(address)

    def _plan_at(self, address: str) -> AgentPlan:
        return plan_at(self.fleet.plans, within_fleet(address, self.fleet.name))

    def _command_id(self, call: HttpCall) -> str:
        """What the caller has given, or one of our own."""
        given = call.headers.get(b"idempotency-key")
        if given is None:
            return new_command_id(int(self.gate.wall_s() * 1e9), self._entropy.token(RANDOM_BYTES))
        try:
            command_id = given.decode()
        except UnicodeDecodeError:
            command_id = ""
        if not 0 < len(command_id) <= COMMAND_ID_CHARS_MAX or not command_id.isprintable():
            wanted = f"1 to {COMMAND_ID_CHARS_MAX} printable characters"
            raise DeniedRequest(400, f"an Idempotency-Key has {wanted}, in ASCII or UTF-8")
        return command_id


def read_fields(body: bytes, message: type[Message]) -> dict[str, Any]:
    """The fields of a message in a body; an empty body has none. Raises WrongFields."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any]) if body else {}
    except msgspec.DecodeError as error:
        raise WrongFields([_field_problem(error)]) from None
    check_fields(fields, message)
    return fields


def check_ledger(fleet: Declaration, name: str) -> None:
    """Raises DeniedRequest for what is no ledger of the fleet."""
    if name not in fleet.ledgers:
        there = ", ".join(fleet.ledgers) or "none"
        raise DeniedRequest(404, f"{name[:100]!r} is no ledger of this fleet; there are {there}")


def check_fields(fields: dict[str, Any], message: type[Message], where: str = "") -> None:
    """Raises WrongFields with all that does not fit this message. Writes 2.0 as 2 where a whole number is wanted."""
    known = fields_of(message)
    wrong = [FieldProblem(f"{where}/{name}", "no such field") for name in fields if name not in known]
    for field in known.values():
        if field.name not in fields:
            if field.required:
                wrong.append(FieldProblem(f"{where}/{field.name}", "missing"))
            continue
        try:
            fields[field.name] = _fitting(fields[field.name], field.type)
            msgspec.msgpack.encode(fields[field.name])
        except msgspec.ValidationError as error:
            wrong.append(_field_problem(error, f"{where}/{field.name}"))
        except OverflowError:
            wrong.append(FieldProblem(f"{where}/{field.name}", "a whole number of more than 64 bits"))
    if wrong:
        raise WrongFields(wrong)


def _fitting(value: Any, kind: Any) -> Any:
    """The value as its type takes it: in JSON 2.0 is the same whole number as 2. Raises msgspec.ValidationError."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        whole = _with_whole_numbers(value)
        try:
            msgspec.convert(whole, kind)
        except msgspec.ValidationError:
            pass
        else:
            return whole
        raise
    return value


def _with_whole_numbers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_whole_numbers(item) for item in value]
        case dict():
            return {key: _with_whole_numbers(item) for key, item in value.items()}
        case _:
            return value


def _field_problem(error: Exception, where: str = "") -> FieldProblem:
    """Where it is, which msgspec says, at the end of its sentence: `Expected int, got str - at $.route[0]`."""
    text = str(error)
    found = _AT.search(text)
    if found is None:
        return FieldProblem(where, text)
    steps = [name or number for name, number in _STEP.findall(found["path"])]
    return FieldProblem("/".join([where, *steps]), text[: found.start()])


def _outcome(outcome: ObservedOutcome) -> Observed:
    if outcome.observed:
        return Observed(True)
    return Observed(False, problem_of(error_named(outcome.kind, outcome.error)))


def _page(limit: int) -> int:
    if not 1 <= limit <= PAGE_COUNT_MAX:
        raise ConfigError(f"limit={limit}: give 1 to {PAGE_COUNT_MAX}")
    return limit


def _trace_of(call: HttpCall) -> tuple[str, str]:
    """The trace context in the headers of a request."""
    parent, state = (call.headers.get(name.encode(), b"").decode("ascii", "replace") for name in TRACE_HEADERS)
    return parent, state


def _read_cursor(text: str | None) -> tuple[int, int]:
    """A position, and how many entries of its commit were shown."""
    if text is None:
        return 0, 0
    position, _, count = text.partition(".")
    if not (position.isascii() and position.isdigit() and len(position) <= 15):
        raise ConfigError(f"after={text[:50]}: give the `next` of the page before")
    if not (count.isascii() and count.isdigit() and len(count) <= 5):
        raise ConfigError(f"after={text[:50]}: give the `next` of the page before")
    return int(position), int(count)
