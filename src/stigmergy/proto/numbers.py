"""Field numbers that stay: a file beside the fleet's code, made by `stigmergy proto` and committed with it.

A program that was built against an earlier .proto file reads and writes by number. So a number keeps its name and type
for good, a field that goes leaves its number reserved, and a change that would make old clients wrong is refused with
what to do instead. Messages that nothing refers to any more stay in the file, in case they come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError
from stigmergy.proto.shapes import ProtoShape, ShapeBook

FORMAT = 1
NUMBER_MAX = 2**29 - 1
_PROTOBUF_OWN = range(19_000, 20_000)
"""Numbers that protobuf keeps for itself."""


class NumberedField(Struct, omit_defaults=True):
    """What a client may rely on."""

    number: int
    type: str = ""
    required: bool = False


class NumberedMessage(Struct, omit_defaults=True):
    """The numbers of a message, or of an enumeration, whose values have no type."""

    fields: dict[str, NumberedField] = {}
    reserved: dict[str, int] = {}

    def next_number(self, first: int) -> int:
        """The lowest number that no field has had."""
        taken = [*(field.number for field in self.fields.values()), *self.reserved.values()]
        number = max((*taken, first - 1)) + 1
        return _PROTOBUF_OWN.stop if number in _PROTOBUF_OWN else number


class FieldNumbers(Struct):
    """The file. `format` is that of the file itself."""

    format: int
    fleet: str
    messages: dict[str, NumberedMessage] = {}
    enums: dict[str, NumberedMessage] = {}


def read_numbers(path: Path, fleet: str) -> FieldNumbers | None:
    """The numbers in a file; None if there is none. Raises ConfigError for one that cannot be used."""
    try:
        numbers = msgspec.json.decode(path.read_bytes(), type=FieldNumbers)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: the field numbers cannot be read ({error}); restore the committed file") from None
    if numbers.format != FORMAT:
        raise ConfigError(f"{path}: format {numbers.format}, this version reads {FORMAT}; update stigmergy")
    if numbers.fleet != fleet:
        raise ConfigError(f"{path}: has the field numbers of the fleet {numbers.fleet!r}, not of {fleet!r}")
    for name, message in (*numbers.messages.items(), *numbers.enums.items()):
        _check_numbers(path, name, message)
    return numbers


def _check_numbers(path: Path, name: str, message: NumberedMessage) -> None:
    """A merge of two branches that both have added a field may have given one number twice."""
    seen: dict[int, str] = {}
    of_fields = ((field, one.number) for field, one in message.fields.items())
    for field, number in (*of_fields, *message.reserved.items()):
        if not 1 <= number <= NUMBER_MAX or number in _PROTOBUF_OWN:
            raise ConfigError(f"{path}: {name}.{field} has number {number}, which protobuf does not allow")
        if number in seen:
            raise ConfigError(
                f"{path}: {name}.{seen[number]} and {name}.{field} both have number {number}; give the newer one, "
                "which no client knows yet, a number of its own"
            )
        seen[number] = field


def write_numbers(numbers: FieldNumbers) -> bytes:
    """The bytes of the file: a line for each value, so that a change shows as what it is."""
    return msgspec.json.format(msgspec.json.encode(numbers), indent=1) + b"\n"


def settle(book: ShapeBook, fleet: str, kept: FieldNumbers | None, reserve: Collection[str] = ()) -> FieldNumbers:
    """Gives every field of the book its number: the one it has had, or the next. Returns what to keep.

    `reserve` names fields that are gone, such as "StartMission.priority". Raises ConfigError for a change that would
    break clients.
    """
    found = msgspec.json.decode(msgspec.json.encode(kept), type=FieldNumbers) if kept else FieldNumbers(FORMAT, fleet)
    unused = dict.fromkeys(reserve)
    for shape in book.shapes.values():
        _settle_message(shape, found.messages, unused)
    for one in book.enums.values():
        numbered = found.enums.setdefault(one.type_name, NumberedMessage())
        _retire(one.type_name, numbered, one.values, unused)
        for name in one.values:
            if name not in numbered.fields:
                _check_not_reserved(one.type_name, name, numbered)
                numbered.fields[name] = NumberedField(numbered.next_number(1))
        one.numbers = {name: numbered.fields[name].number for name in one.values}
    if unused:
        raise ConfigError(f"--reserve {next(iter(unused))}: no field of that name has gone; name it as it was refused")
    return found


def _settle_message(shape: ProtoShape, known: dict[str, NumberedMessage], unused: dict[str, None]) -> None:
    is_new = shape.name not in known
    numbered = known.setdefault(shape.name, NumberedMessage())
    _retire(shape.name, numbered, [field.name for field in shape.fields], unused)
    for field in shape.fields:
        path = f"{shape.name}.{field.name}"
        needed = field.required and not shape.is_read_only
        had = numbered.fields.get(field.name)
        if had is None:
            _check_not_reserved(shape.name, field.name, numbered)
            if needed and not is_new:
                raise ConfigError(f"{path} is new and has no default, and old clients do not send it; give it one")
            number = field.number or numbered.next_number(shape.first_number)
            numbered.fields[field.name] = NumberedField(number, field.type_name, needed)
        else:
            if had.type != field.type_name:
                raise ConfigError(
                    f"{path} was {had.type} and is now {field.type_name}: old clients would read it wrong. Give the "
                    f"new one another name, and reserve the old one: --reserve {path}"
                )
            if needed and not had.required:
                raise ConfigError(f"{path} had a default and has none now, and old clients may not send it; keep it")
            had.required = needed
        field.number = numbered.fields[field.name].number


def _retire(owner: str, numbered: NumberedMessage, there: Iterable[str], unused: dict[str, None]) -> None:
    """Reserves what has gone, if that was asked for."""
    for name in [one for one in numbered.fields if one not in set(there)]:
        path = f"{owner}.{name}"
        if path not in unused:
            raise ConfigError(
                f"{path} is gone, and old clients still use its number {numbered.fields[name].number}; bring it back, "
                f"or give up those clients and keep its number unused: --reserve {path}"
            )
        del unused[path]
        numbered.reserved[name] = numbered.fields.pop(name).number


def _check_not_reserved(owner: str, name: str, numbered: NumberedMessage) -> None:
    if name in numbered.reserved:
        raise ConfigError(
            f"{owner}.{name} was given up before, and its name and number {numbered.reserved[name]} stay unused; "
            "choose another name"
        )


def describe_changes(before: FieldNumbers | None, after: FieldNumbers) -> list[str]:
    """What is new and what is reserved, for people."""
    told: list[str] = []
    for name, message in (*after.messages.items(), *after.enums.items()):
        old = None if before is None else before.messages.get(name) or before.enums.get(name)
        if old is None:
            told.append(f"{name}: new")
            continue
        told += [
            f"{name}.{field}: new, number {message.fields[field].number}"
            for field in message.fields.keys() - old.fields.keys()
        ]
        told += [f"{name}.{field}: reserved" for field in message.reserved.keys() - old.reserved.keys()]
    return sorted(told)
