"""Answers questions to views, in the words of the control protocol."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stigmergy.agents.messages import plain_name
from stigmergy.agents.view import HIDDEN, View, ViewPlan
from stigmergy.base.errors import ConfigError, Malformed
from stigmergy.control import protocol, replies
from stigmergy.control.replies import filled
from stigmergy.views.port import Operator, RowCondition, check_selection, read_value
from stigmergy.views.query import read_position
from stigmergy.views.service import ViewService

WITHIN_S_MAX = 50.0
"""A question waits at most so long for positions: less than a request may take."""
_CONDITION = re.compile(r"(?P<field>[^\W\d]\w*)(?P<op><=|>=|!=|=|<|>)(?P<value>.*)", re.DOTALL)


async def answer_view(
    views: ViewService | None, request: protocol.ViewRequest, *, is_only: bool = True
) -> replies.ViewReply:
    """The rows that are asked for; `is_only` says whether no other node has a log of this fleet.

    Raises ConfigError, Malformed, ViewBehind, ViewFailed, StoreError.
    """
    service = _there(views)
    plan = service.plan(request.view)
    if not 0 <= request.within_s <= WITHIN_S_MAX:
        raise ConfigError(f"within_s {request.within_s:g}: give 0 to {WITHIN_S_MAX:g} seconds")
    where = [read_condition(plan, text) for text in request.where]
    order = [(text.removeprefix("-"), text.startswith("-")) for text in request.order]
    wanted = check_selection(plan, where, order, request.limit, request.cursor)
    after = dict(read_after(service, text, is_only=is_only) for text in request.after)
    found = await service.page(plan, wanted, after, request.within_s)
    rows = [described_row(plan.row_of(values)) for values in found.rows]
    return replies.ViewReply(plan.name, rows, found.cursor or None, found.positions)


async def answer_views(views: ViewService | None) -> replies.ViewsReply:
    """Where the views stand."""
    service = _there(views)
    found: list[replies.ViewStatusReply] = []
    for status in await service.statuses():
        plan = service.plan(status.view)
        fields = {column.name: _type_of(plan, column.name) for column in plan.columns}
        found.append(filled(replies.ViewStatusReply, status, keys=list(plan.keys), fields=fields))
    return replies.ViewsReply(found)


def read_condition(plan: ViewPlan, text: str) -> RowCondition:
    """Reads `active>=5`, the value by the type of the field. Raises Malformed."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise Malformed(f"{text!r} is no condition; write FIELD=VALUE, or !=, <, <=, >, >= instead of =")
    op: Operator = found["op"]  # type: ignore[assignment]
    return RowCondition(found["field"], op, read_value(plan, found["field"], found["value"]))


def read_after(service: ViewService, text: str, *, is_only: bool = True) -> tuple[str, int]:
    """Reads what to wait for: `3@5f3a9c1e:41` is position 41 of shard 3 of that log, `ground/0@…:7` of shard 0 of
    another fleet, and `Drone/D-17:41` of the shard of this agent. Raises Malformed, and ConfigError for a position that
    may be of another node's log."""
    name, position = read_position(text)
    if "/" in name and not service.is_log(name):
        return service.position_name(name), position
    if "@" not in name and position and not is_only:
        raise ConfigError(f"after {text!r} does not say of which node's log it is; give the `after` of the answer")
    return name, position


def described_row(row: View) -> dict[str, Any]:
    """A row as it is told to people and programs; bytes are base64."""
    fields = {name: getattr(row, name) for name in type(row).__struct_fields__ if name != HIDDEN}
    told: dict[str, Any] = msgspec.to_builtins(fields, str_keys=True)
    return told


def _there(views: ViewService | None) -> ViewService:
    if views is None:
        raise ConfigError(
            "no views are kept here: list them in Fleet(…, views=[…]); those of a fleet on workers are kept by "
            "stigmergy project"
        )
    return views


def _type_of(plan: ViewPlan, name: str) -> str:
    return plain_name(plan.hints[name]).replace("NoneType", "None")


class ViewsHandler:
    """The control endpoint of a process that only has views: `stigmergy project`."""

    def __init__(self, views: ViewService) -> None:
        self._views = views

    async def answer(self, request: protocol.AnyRequest) -> Any:
        """The answers to this request. Raises nothing: a refusal is a reply."""
        try:
            match request:
                case protocol.ViewRequest():
                    return iter((protocol.single(await answer_view(self._views, request)),))
                case protocol.ViewsRequest():
                    return iter((protocol.single(await answer_views(self._views)),))
                case _:
                    raise ConfigError("this process has the views of its fleet, and nothing else; ask a worker")
        except Exception as error:
            return iter((protocol.refusal(error),))
