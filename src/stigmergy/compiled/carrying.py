"""Carries what was written with another version of an agent class over to today's records and rows. No numba.

This is the slow way, and the only one where messages and agents become objects: it goes through the class's own
decoders, upcasters and `upcast_state`, so that it ends where the interpreted engine would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from stigmergy.compiled.fields import CONFIRMATIONS, OTHER
from stigmergy.compiled.parts import RowsPart
from stigmergy.compiled.program import Program
from stigmergy.compiled.rows import Bytes
from stigmergy.core.codec import UNDECODABLE, encode
from stigmergy.core.columns import (
    Column,
    Layout,
    canonical_nan,
    read_records,
    write_record,
)
from stigmergy.core.errors import FoldMismatch, Malformed
from stigmergy.core.messages import Message, spec_of
from stigmergy.core.plans import AgentPlan, plan_agent
from stigmergy.core.window_columns import read_row, write_row

NameOf = Callable[[int], str]


class Carrying:
    """From messages and agents to records and rows, and back, for one class."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._layout = program.layout
        self._form_of = {form.tag: number for number, form in enumerate(program.layout.forms)}
        self._checkers: dict[type[Message], Callable[[bytes], Message]] = {}
        self._restore = msgspec.msgpack.Decoder(program.cls).decode

    @cached_property
    def _plan(self) -> AgentPlan:
        return plan_agent(self._program.cls)

    def record_of(self, agent: int, message: Message) -> bytes:
        """A message as a record. Raises Malformed for one of no form, or with a value that it does not allow."""
        cls = type(message)
        form = self._form_of.get(spec_of(cls).tag)
        if form is None:
            known = ", ".join(self._form_of) or "none"
            raise Malformed(f"{self._layout.kind} has no records of {spec_of(cls).tag}; it has {known}")
        check = self._checkers.get(cls)
        if check is None:
            check = self._checkers[cls] = msgspec.msgpack.Decoder(cls).decode
        try:
            checked = check(encode(message))
        except (*UNDECODABLE, TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"{spec_of(cls).tag} for {self._layout.kind} does not decode: {error}") from None
        fields = _fields(checked, self._layout.forms[form].columns)
        name = CONFIRMATIONS.get(cls, "")
        if name and all(fields[name] != one for one, _ in self._layout.forms[form].columns[0].members):
            fields[name] = OTHER
        return write_record(self._layout, form, agent, fields)

    def agent_of(self, name: str, row: bytes) -> Any:
        """A row as an object."""
        return self._restore(encode({"id": name, **read_row(self._layout.columns, row)}))

    def is_alike(self, layout: Layout) -> bool:
        """Whether records of that layout are records of today's as they are."""
        forms = layout.forms
        return layout.record_bytes == self._layout.record_bytes and forms == self._layout.forms[: len(forms)]

    def to_todays_records(self, records: bytes, layout: Layout) -> bytes:
        """The same events as records of today. Raises FoldMismatch for what today's classes cannot read."""
        made: list[bytes] = []
        for record in read_records(records, layout):
            try:
                message = self._plan.decode_kept(record.body)
                if message is not None and spec_of(type(message)).tag in self._form_of:
                    made.append(self.record_of(record.agent, message))
            except (*UNDECODABLE, Malformed) as error:
                raise FoldMismatch(
                    f"{record.tag} in the log of {self._layout.kind} is none of today's ({error}); write an upcaster "
                    "for it, or use the version that wrote the log"
                ) from None
        return b"".join(made)

    def to_todays_rows(self, part: RowsPart, layout: Layout, rows: Bytes, name_of: NameOf) -> Bytes:
        """The same agents as rows of today, by `upcast_state`. Raises FoldMismatch where it does not say how."""
        made: list[bytes] = []
        data, start = rows.tobytes(), 0
        for first, count in part.runs:
            for number in range(first, first + count):
                fields = {"id": name_of(number), **read_row(layout.columns, data, start)}
                made.append(self._row_of(self._carried(part.version, fields)))
                start += layout.row_bytes
        return np.frombuffer(b"".join(made), np.uint8)

    def _carried(self, version: int, fields: dict[str, Any]) -> Any:
        cls = self._program.cls
        carried = None
        if version != cls.__agent_version__:
            try:
                carried = cls.upcast_state(version, fields)
            except Exception as error:
                raise FoldMismatch(
                    f"{cls.__qualname__}.upcast_state from version {version} raises {type(error).__name__}: {error}; "
                    "mend it, or keep the whole log so that it can be replayed"
                ) from error
        if carried is None:
            raise FoldMismatch(
                f"{self._layout.kind} was version {version} in the snapshot and is version {cls.__agent_version__} "
                "with another layout now; raise version= and write upcast_state, or keep the whole log so that it can "
                "be replayed"
            )
        if type(carried) is not cls:
            raise FoldMismatch(f"{cls.__qualname__}.upcast_state returns {carried!r}, not a {cls.__qualname__}")
        return carried

    def _row_of(self, agent: Any) -> bytes:
        columns, row = self._layout.columns, bytearray(self._layout.row_bytes)
        try:
            write_row(columns, _fields(agent, columns), row, self._program.cls.__qualname__)
        except Malformed as error:
            raise FoldMismatch(f"upcast_state has made a state that has no place in a row: {error}") from None
        return bytes(row)


def _fields(values: Any, columns: Sequence[Column]) -> dict[str, Any]:
    """What goes into columns, with the one NaN."""
    found: dict[str, Any] = {}
    for column in columns:
        value = getattr(values, column.name)
        found[column.name] = canonical_nan(value) if isinstance(value, float) else value
    return found
