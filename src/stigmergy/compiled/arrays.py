"""Arrays of values as columns of records: a value that does not fit is refused with its field and its row. No numba."""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.agents.columns import ENUM, Column, Form, Layout
from stigmergy.agents.messages import Message
from stigmergy.base.errors import Malformed
from stigmergy.compiled.fields import Field, Refusal, field_of

EXACT_MAX = 2**53
"""Whole numbers up to here are floats without a loss."""
AGENT = " agent"
FORM = " form"
"""The head of a record, under names that no field can have."""
_DTYPES = {"f8": "<f8", "b1": "?", ENUM: "<u2"}
_RANGES = {
    f"{sign}{size}": np.iinfo(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8) if f"{sign}{size}" != "u8"
}

Values = NDArray[Any]


class Coded(Struct, frozen=True):
    """Values that repeat: each once, and for every row which it is. As Arrow's dictionaries are."""

    values: Sequence[Any]
    places: Values

    def __len__(self) -> int:
        return len(self.places)


def record_dtype(layout: Layout, form: Form) -> np.dtype[Any]:
    """A record of this form as numpy sees it."""
    columns = form.columns
    return np.dtype(
        {
            "names": [AGENT, FORM, *(column.name for column in columns)],
            "formats": ["<u4", "<u2", *(dtype_of(column) for column in columns)],
            "offsets": [0, 4, *(column.offset for column in columns)],
            "itemsize": layout.record_bytes,
        }
    )


def dtype_of(column: Column) -> str:
    """How numpy reads a column. Fixed bytes are V: S would lose zeros at their end."""
    if column.code.startswith("S"):
        return f"V{column.size_bytes}"
    return _DTYPES.get(column.code, f"<{column.code}")


def bounds_of(message: type[Message] | None) -> dict[str, Field]:
    """What the fields of a message allow beside their width; nothing is known without the class."""
    if message is None:
        return {}
    hints = typing.get_type_hints(message, include_extras=True)
    fields = {name: field_of(name, hints[name]) for name in message.__struct_fields__}
    return {name: field for name, field in fields.items() if not isinstance(field, Refusal)}


def fill(rows: Values, form: Form, given: Mapping[str, Any], bounds: Mapping[str, Field]) -> None:
    """Puts columns into records. Raises Malformed, naming the field and the row; then nothing of it may be used."""
    what = form.tag.partition("@")[0]
    wanted = [column.name for column in form.columns]
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        said = [f"has no {', '.join(names)}" for names in (missing,) if names]
        said += [f"does not know {', '.join(names)}" for names in (unknown,) if names]
        raise Malformed(f"{what}: give {', '.join(wanted) or 'no columns'}; what was given {' and '.join(said)}")
    for column in form.columns:
        where = f"{what}.{column.name}"
        values = given[column.name]
        if _length(values) not in (None, len(rows)):
            raise Malformed(
                f"{where}: {_length(values)} values for {len(rows)} rows; give one for each, or one for all"
            )
        rows[column.name] = column_of(where, column, values, bounds.get(column.name))


def column_of(where: str, column: Column, values: Any, field: Field | None = None) -> Values:
    """Values as they are stored. Raises Malformed."""
    if column.code == ENUM:
        return _members(where, column, values)
    if column.code.startswith("S"):
        return _bytes(where, column, values)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise Malformed(
            f"{where}, row {int(np.flatnonzero(np.ma.getmaskarray(values))[0])}: no value; give one for each"
        )
    array = np.asarray(values)
    if column.code == "f8":
        return _floats(where, array, field)
    if column.code == "b1":
        if array.dtype.kind != "b":
            raise Malformed(f"{where}: {array.dtype} where booleans belong; convert them")
        return array
    return _whole_numbers(where, column, array, field)


def _floats(where: str, array: Values, field: Field | None) -> Values:
    if array.dtype.kind not in "fiu":
        raise Malformed(f"{where}: {array.dtype} where numbers belong; convert them")
    if array.dtype.kind in "iu":
        _refuse(where, array, (array > EXACT_MAX) | (array < -EXACT_MAX), "is no float without a loss")
    floats = array.astype("<f8", copy=False)
    for condition, bound in () if field is None else field.bounds:
        _refuse(where, floats, ~_holds(condition, floats, bound), f"is not allowed ({field.said() if field else ''})")
    strange = np.isnan(floats)
    if strange.any():
        floats = np.where(strange, np.nan, floats)
    return floats


def _whole_numbers(where: str, column: Column, array: Values, field: Field | None) -> Values:
    if array.dtype.kind not in "iu":
        raise Malformed(f"{where}: {array.dtype} where whole numbers belong; convert them")
    limits = _RANGES[column.code]
    low, high = (int(limits.min), int(limits.max)) if field is None else (field.low, field.high)
    # Compared as Python's numbers are: an unsigned array holds no negative bound.
    wrong = np.zeros(array.shape, bool)
    if array.dtype.kind == "i" or low > 0:
        wrong |= array < max(low, int(np.iinfo(array.dtype).min))
    if int(np.iinfo(array.dtype).max) > high:
        wrong |= array > high
    if int(np.iinfo(array.dtype).max) < low:
        wrong[...] = True
    _refuse(where, array, wrong, f"is not within {low} to {high}")
    return array.astype(f"<{column.code}")


def _bytes(where: str, column: Column, values: Any) -> Values:
    """Fixed bytes: an array of V or S of that very width, of u1 in two dimensions, or a sequence of bytes."""
    size = column.size_bytes
    if isinstance(values, np.ndarray) and values.dtype.kind in "VS" and values.dtype.itemsize == size:
        return np.ascontiguousarray(values).view(f"V{size}")
    if isinstance(values, np.ndarray) and values.dtype == np.uint8 and values.ndim == 2 and values.shape[1] == size:
        return np.ascontiguousarray(values).view(f"V{size}").reshape(-1)
    listed = [values] if isinstance(values, bytes) else list(values)
    for row, value in enumerate(listed):
        if not isinstance(value, bytes) or len(value) != size:
            raise Malformed(f"{where}, row {row}: {value!r:.50} where {size} bytes belong")
    return np.frombuffer(b"".join(listed), f"V{size}")


def _members(where: str, column: Column, values: Any) -> Values:
    """Members of an enum, or their values, as their places."""
    places = {body: number for number, (_, body) in enumerate(column.members)}
    coded = coded_of(values)
    found = np.fromiter((_place_of(value, places) for value in coded.values), np.int64, len(coded.values))
    made = found[coded.places]
    if (made < 0).any():
        row = int(np.flatnonzero(made < 0)[0])
        names = ", ".join(name for name, _ in column.members)
        raise Malformed(f"{where}, row {row}: {coded.values[coded.places[row]]!r:.50} is no value of {names}")
    return made.astype("<u2")


def coded_of(values: Any) -> Coded:
    """Any values, each once."""
    if isinstance(values, Coded):
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuU":
        distinct, places = np.unique(values, return_inverse=True)
        return Coded(distinct.tolist(), places.reshape(-1))
    listed = [values] if isinstance(values, str | bytes | int | enum.Enum) else list(values)
    numbers: dict[Any, int] = {}
    try:
        places = np.fromiter((numbers.setdefault(value, len(numbers)) for value in listed), np.int64, len(listed))
    except TypeError:  # what cannot be a key is no value of an enum either
        return Coded(listed, np.arange(len(listed)))
    return Coded(list(numbers), places)


def _place_of(value: Any, places: Mapping[bytes, int]) -> int:
    try:
        return places.get(encode(value), -1)
    except (*UNDECODABLE, TypeError):
        return -1


def _holds(condition: str, values: Values, bound: float) -> Values:
    """NaN is within no bounds."""
    sign = condition.split()[1]
    if sign == ">=":
        return values >= bound
    if sign == ">":
        return values > bound
    return values <= bound if sign == "<=" else values < bound


def _refuse(where: str, values: Values, wrong: Values, why: str) -> None:
    if wrong.any():
        row = int(np.flatnonzero(np.atleast_1d(wrong))[0])
        raise Malformed(f"{where}, row {row}: {np.atleast_1d(values)[row].item()} {why}")


def _length(values: Any) -> int | None:
    """How many values there are; None for one that is meant for all rows."""
    if isinstance(values, bytes | str | enum.Enum) or np.isscalar(values):
        return None
    if isinstance(values, np.ndarray):
        return None if values.ndim == 0 else len(values)
    return len(values)
