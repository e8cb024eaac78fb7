"""Arrow record batches and tables into a batcher: for producers who have their measurements in such. Needs pyarrow.

One row is one event. The agent is in a column `agent` (a name, or Kind/name) or `number` (a place in the roster); the
event's fields are columns of their own. What `read_log` adds beside them is passed over: what was read can be sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]

from stigmergy.compiled.arrays import Coded
from stigmergy.compiled.arrow import OWN, own_name
from stigmergy.compiled.batcher import Batcher
from stigmergy.core.errors import Malformed
from stigmergy.core.messages import Message

AGENT = "agent"
NUMBER = "number"


def add_table(batcher: Batcher, message: type[Message] | str, data: Any) -> int:
    """Adds the rows of a pyarrow RecordBatch or Table to a batcher; returns how many.

    Raises Malformed, naming column and row, with nothing added: for columns that are missing or not known, for nulls,
    for values of another type or outside of their bounds, for agents that are not in the roster.
    """
    if not isinstance(data, arrow.RecordBatch | arrow.Table):
        raise Malformed(f"{type(data).__name__} is neither a RecordBatch nor a Table of pyarrow")
    form = batcher.form_of(message)
    names = data.schema.names
    whose = [name for name in (AGENT, NUMBER) if name in names and name not in _fields_named(form)]
    if len(whose) != 1:
        raise Malformed(f"give either a column {AGENT} or a column {NUMBER}; there are {', '.join(names) or 'none'}")
    columns: dict[str, Any] = {}
    for field in form.columns:
        named = own_name(field.name)
        if named in names:
            columns[field.name] = _values(named, data.column(named))
    known = [*OWN, *whose, *(own_name(field.name) for field in form.columns)]
    for name in names:
        if name not in known:
            columns[name] = ()  # it is refused under its name
    agents = _values(whose[0], data.column(whose[0]))
    if whose == [AGENT]:
        agents = _names(agents, batcher.kind)
    elif not isinstance(agents, np.ndarray) or agents.dtype.kind not in "iu":
        raise Malformed(f"column {NUMBER}: {data.schema.field(NUMBER).type} where whole numbers belong")
    return batcher.add_columns(message, agents, columns)


def _fields_named(form: Any) -> list[str]:
    return [own_name(field.name) for field in form.columns]


def _names(agents: Any, kind: str) -> Coded:
    if not isinstance(agents, Coded) or not all(isinstance(name, str) for name in agents.values):
        raise Malformed(f"column {AGENT}: names belong there; put numbers into a column {NUMBER}")
    return Coded([name.removeprefix(f"{kind}/") for name in agents.values], agents.places)


def _values(name: str, column: Any) -> Any:
    """A column as numpy has it; texts and dictionaries each value once."""
    array = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise Malformed(f"column {name}, row {row}: null; give a value in every row")
    kind = array.type
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        array = array.dictionary_encode()
    if arrow.types.is_dictionary(array.type):
        return Coded(array.dictionary.to_pylist(), array.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    if arrow.types.is_fixed_size_binary(kind):
        whole = np.frombuffer(array.buffers()[1] or b"", f"V{kind.byte_width}")
        return whole[array.offset : array.offset + len(array)]
    if arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
        return array.to_pylist()
    return array.to_numpy(zero_copy_only=False)
