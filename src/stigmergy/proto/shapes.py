"""Maps the types of a fleet to protobuf messages, and values of the control protocol to such messages and back.

A shape knows names and types, and no numbers: those are in `numbers`. A value is what `msgspec.to_builtins` makes:
dicts, lists, texts and numbers. The rules, which docs/grpc.md lists for users:

- A field that is not there is not zero. Every singular field has presence, so that an altitude that a client forgot is
  refused, or gets the default of its class, and never flies as 0.
- Absence has one meaning. Where a type has two (a list that defaults to something, None beside another default), the
  value is in a message of its own.
- What has no mapping is refused with the name of its field. A state is only read: there it becomes a
  `google.protobuf.Value`, as `stigmergy state` shows it.
"""

from __future__ import annotations

import base64
import enum
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec import inspect as types

from stigmergy.agents.messages import Blob
from stigmergy.agents.view import HIDDEN, View
from stigmergy.base.errors import DefinitionError, Malformed
from stigmergy.models.model import ModelSource

TIMESTAMP = "google.protobuf.Timestamp"
VALUE = "google.protobuf.Value"
NULL = "google.protobuf.NullValue"
NULL_NAME = "none"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_EMPTY = (list, tuple, dict, set, frozenset)


class Unmapped(Exception):
    """A type that protobuf has nothing for: where it is, and what to use instead."""

    def __init__(self, why: str, *path: str) -> None:
        super().__init__(why, *path)
        self.why, self.path = why, path

    def under(self, name: str) -> Unmapped:
        """The same, seen from the type that has a field of this name."""
        return Unmapped(self.why, name, *self.path)

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.why}"


class Kind:
    """The type of a single value. A message is filled and read in place; any other value is put and taken."""

    type_name = ""
    is_message = False

    def put(self, value: Any) -> Any:
        """The value as protobuf has it. Raises TypeError and ValueError for one that does not fit."""
        raise NotImplementedError

    def fill(self, message: Any, value: Any) -> None:
        """Puts the value into a message. Raises as `put`."""
        raise NotImplementedError

    def take(self, found: Any, path: str) -> Any:
        """The value of a message or of what was put. Raises Malformed, with the path of what is wrong."""
        raise NotImplementedError


class Scalar(Kind):
    """A number, a text, bytes, or something that is told as one of these."""

    def __init__(self, type_name: str, put: Callable[[Any], Any], take: Callable[[Any], Any] = lambda found: found):
        self.type_name = type_name
        self._put, self._take = put, take

    def put(self, value: Any) -> Any:
        return self._put(value)

    def take(self, found: Any, path: str) -> Any:
        return self._take(found)


def _whole(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not a whole number")
    return int(value)


BOOL = Scalar("bool", bool)
INT = Scalar("int64", _whole)
FLOAT = Scalar("double", float)
TEXT = Scalar("string", str)
BYTES = Scalar(
    "bytes",
    lambda value: value if isinstance(value, bytes) else base64.b64decode(value),
    lambda found: base64.b64encode(found).decode(),
)
_AS_TEXT = (types.StrType, types.DateType, types.TimeType, types.UUIDType, types.DecimalType, types.TimeDeltaType)


class Nothing(Kind):
    """None, where it is one of several."""

    type_name = NULL

    def put(self, value: Any) -> int:
        return 0

    def take(self, found: Any, path: str) -> None:
        return None


class Timestamp(Kind):
    """A time. It is read as UTC where it has no zone."""

    type_name = TIMESTAMP
    is_message = True

    def fill(self, message: Any, value: Any) -> None:
        moment = datetime.fromisoformat(value)
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        message.seconds, message.nanos = since // timedelta(seconds=1), since.microseconds * 1000
        message.SetInParent()

    def take(self, found: Any, path: str) -> str:
        try:
            moment = _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
        except OverflowError:
            raise Malformed(f"{path}: {found.seconds} s since 1970 is no time of years 1 to 9999") from None
        return moment.isoformat().replace("+00:00", "Z")


class AnyValue(Kind):
    """Whatever JSON can say."""

    type_name = VALUE
    is_message = True

    def fill(self, message: Any, value: Any) -> None:
        match value:
            case None:
                message.null_value = 0
            case bool():
                message.bool_value = value
            case int() | float():
                message.number_value = value
            case str():
                message.string_value = value
            case dict():
                message.struct_value.SetInParent()
                for key, below in value.items():
                    self.fill(message.struct_value.fields[str(key)], below)
            case _:
                message.list_value.SetInParent()
                for below in value:
                    self.fill(message.list_value.values.add(), below)

    def take(self, found: Any, path: str) -> Any:
        match found.WhichOneof("kind"):
            case "struct_value":
                return {key: self.take(below, path) for key, below in found.struct_value.fields.items()}
            case "list_value":
                return [self.take(below, path) for below in found.list_value.values]
            case None | "null_value":
                return None
            case name:
                return getattr(found, name)


class EnumKind(Kind):
    """An enumeration. Zero is no value of it, so that a forgotten one is none of them."""

    def __init__(self, name: str, cls: type[enum.Enum]) -> None:
        self.type_name = name
        prefix = snake(name).upper()
        self.unspecified = f"{prefix}_UNSPECIFIED"
        self.values = {f"{prefix}_{member.name}": member.value for member in cls}
        self.numbers: dict[str, int] = {}
        """By the names of protobuf; given by `numbers`."""

    def put(self, value: Any) -> int:
        for name, known in self.values.items():
            if known == value:
                return self.numbers[name]
        raise ValueError(f"{value!r} is no {self.type_name}")

    def take(self, found: int, path: str) -> Any:
        for name, number in self.numbers.items():
            if number == found:
                return self.values[name]
        raise Malformed(f"{path}: {found} is no {self.type_name}; it has {', '.join(self.values)}")


class Label(enum.Enum):
    """How often a field may be there."""

    PLAIN = ""
    """Not there is empty or zero: for the messages of the service itself."""
    ONE = "optional "
    MANY = "repeated "
    MAP = "map "
    MEMBER = "oneof "


class ProtoField(Struct, kw_only=True):
    """A field of a message."""

    name: str
    kind: Kind
    form: Label = Label.ONE
    key: str = ""
    """In the values of the control protocol."""
    map_key: Scalar = TEXT
    required: bool = False
    """A client that does not give it is refused."""
    nothing: bool = False
    """Absence means None, and is said so, because the class has no default."""
    tag: str = ""
    """Of a member of a union of structs."""
    json: str = ""
    """What a member of another union is in JSON."""
    number: int = 0
    about: str = ""

    @property
    def type_name(self) -> str:
        """As it is written in a .proto file."""
        if self.form is Label.MAP:
            return f"map<{self.map_key.type_name}, {self.kind.type_name}>"
        return f"{self.form.value}{self.kind.type_name}"

    def put_into(self, message: Any, value: Any) -> None:
        """Sets this field of a message."""
        try:
            match self.form:
                case Label.MANY:
                    found = getattr(message, self.name)
                    for one in value:
                        if self.kind.is_message:
                            self.kind.fill(found.add(), one)
                        else:
                            found.append(self.kind.put(one))
                case Label.MAP:
                    found = getattr(message, self.name)
                    for key, one in value.items():
                        if self.kind.is_message:
                            self.kind.fill(found[self._map_key(key)], one)
                        else:
                            found[self._map_key(key)] = self.kind.put(one)
                case _ if self.kind.is_message:
                    self.kind.fill(getattr(message, self.name), value)
                case _:
                    setattr(message, self.name, self.kind.put(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.name}: {error}") from None

    def _map_key(self, key: Any) -> Any:
        """JSON has texts for keys only."""
        if self.map_key is BOOL and isinstance(key, str):
            return key == "true"
        return self.map_key.put(key)

    def take_from(self, message: Any, path: str) -> Any:
        """The value of this field of a message, which is there."""
        found, path = getattr(message, self.name), f"{path}.{self.name}" if path else self.name
        match self.form:
            case Label.MANY:
                return [self.kind.take(one, f"{path}[{index}]") for index, one in enumerate(found)]
            case Label.MAP:
                return {key: self.kind.take(one, f"{path}[{key!r}]") for key, one in found.items()}
            case _:
                return self.kind.take(found, path)


class Style(enum.Enum):
    """What a message stands for."""

    STRUCT = "struct"
    TUPLE = "tuple"
    UNION = "union"
    BOX = "box"
    """The one value in it."""


class ProtoShape(Kind):
    """A message: its fields in the order of the class."""

    is_message = True

    def __init__(self, name: str, style: Style, about: str = "", tag: tuple[str, Any] | None = None) -> None:
        self.type_name = self.name = name
        self.style = style
        self.about = about
        self.tag = tag
        self.fields: list[ProtoField] = []
        self.is_read_only = False
        """Only sent to clients: what they must give is no matter."""
        self.first_number = 1
        self.oneof = "choice"

    def fill(self, message: Any, value: Any) -> None:
        message.SetInParent()
        match self.style:
            case Style.STRUCT:
                if not isinstance(value, dict):
                    raise ValueError(f"{value!r} is no {self.name}")
                for field in self.fields:
                    one = value.get(field.key)
                    if one is not None or (field.key in value and _says_none(field.kind)):
                        field.put_into(message, one)
            case Style.TUPLE:
                for field, one in zip(self.fields, value, strict=True):
                    field.put_into(message, one)
            case Style.BOX:
                self.fields[0].put_into(message, value)
            case Style.UNION:
                member = _member(self, value)
                member.put_into(message, value)

    def take(self, found: Any, path: str) -> Any:
        match self.style:
            case Style.STRUCT:
                return self._take_struct(found, path)
            case Style.TUPLE:
                for field in self.fields:
                    self._check_there(found, field, path)
                return [field.take_from(found, path) for field in self.fields]
            case Style.BOX:
                return self.fields[0].take_from(found, path)
            case Style.UNION:
                for field in self.fields:
                    if found.HasField(field.name):
                        return field.take_from(found, path)
                raise Malformed(f"{path or self.name}: give one of {', '.join(field.name for field in self.fields)}")

    def _take_struct(self, found: Any, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {} if self.tag is None else dict((self.tag,))
        for field in self.fields:
            if field.form in (Label.MANY, Label.MAP) or found.HasField(field.name):
                values[field.key] = field.take_from(found, path)
            elif field.nothing:
                values[field.key] = None
            elif field.required:
                self._check_there(found, field, path)
        return values

    def _check_there(self, found: Any, field: ProtoField, path: str) -> None:
        if field.form is Label.ONE and not found.HasField(field.name):
            at = f"{path}.{field.name}" if path else field.name
            raise Malformed(f"{at} is missing; it is {field.type_name.removeprefix(Label.ONE.value)}")


def _says_none(kind: Kind) -> bool:
    return isinstance(kind, ProtoShape) and any(isinstance(field.kind, Nothing) for field in kind.fields)


def _member(shape: ProtoShape, value: Any) -> ProtoField:
    """The member of a union that a value is of. msgspec lets a union have one type for each of JSON's at most."""
    if isinstance(value, dict):
        for field in shape.fields:
            if field.tag and isinstance(field.kind, ProtoShape) and field.kind.tag is not None:
                key, tag = field.kind.tag
                if value.get(key) == tag:
                    return field
    word = _json_word(value)
    for wanted in (word, "number" if word == "integer" else word):
        for field in shape.fields:
            if field.json == wanted:
                return field
    raise ValueError(f"{value!r} is none of {', '.join(field.name for field in shape.fields)}")


def _json_word(value: Any) -> str:
    for cls, word in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (bytes, "string")):
        if isinstance(value, cls):
            return word
    return "null" if value is None else "object" if isinstance(value, dict) else "array"


def snake(name: str) -> str:
    """`StartMission` as the name of a field: start_mission."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


# ---------------------------------------------------------------------- from classes


class ShapeBook:
    """All messages and enumerations of one .proto file, by name. A class has one message, wherever it is used."""

    def __init__(self) -> None:
        self.shapes: dict[str, ProtoShape] = {}
        self.enums: dict[str, EnumKind] = {}
        self._of: dict[Any, Kind] = {}
        self._read_only = False

    def add(self, shape: ProtoShape) -> ProtoShape:
        """Takes a message in. Raises DefinitionError if its name is taken."""
        self._check_name(shape.name)
        self.shapes[shape.name] = shape
        shape.is_read_only = self._read_only
        return shape

    def message(self, cls: type, name: str) -> ProtoShape:
        """The message for a command or an event. Raises DefinitionError for what has no mapping."""
        shape = self._of.get(cls)
        if shape is None:
            try:
                shape = self._struct(types.type_info(cls), name, cls)
            except Unmapped as error:
                raise DefinitionError(str(error.under(name))) from None
        assert isinstance(shape, ProtoShape)
        return shape

    def state(self, cls: type, name: str) -> ProtoShape:
        """The message for a state or a row; what has no mapping is a Value there."""
        self._read_only = True
        try:
            return self.message(cls, name)
        finally:
            self._read_only = False

    def _check_name(self, name: str) -> None:
        if _NAME.fullmatch(name) is None:
            raise DefinitionError(f"{name!r} is no name of a protobuf message; use ASCII letters, digits and '_'")
        if name in self.shapes or name in self.enums:
            raise DefinitionError(f"two types of this fleet are called {name} in protobuf; rename one of the classes")

    def _struct(self, info: Any, name: str, cls: Any) -> ProtoShape:
        positional = isinstance(info, types.NamedTupleType) or getattr(info, "array_like", False)
        tagged = isinstance(info, types.StructType) and info.tag is not None
        style = Style.TUPLE if positional else Style.STRUCT
        if positional and tagged:
            raise Unmapped(f"{name} has array_like=True and a tag, and no mapping to protobuf; leave one of both out")
        shape = ProtoShape(name, style, tag=(info.tag_field, info.tag) if tagged else None)
        self.add(shape)
        self._of[cls] = shape
        for field in info.fields:
            if field.name == HIDDEN and isinstance(cls, type) and issubclass(cls, View):
                continue  # not a column
            try:
                shape.fields.append(self._field(name, field, positional=positional))
            except Unmapped as error:
                if not self._read_only:
                    raise error.under(field.name) from None
                shape.fields.append(ProtoField(name=_checked_name(field.name), key=field.encode_name, kind=AnyValue()))
        _check_distinct(shape)
        return shape

    def _field(self, owner: str, field: types.Field, *, positional: bool) -> ProtoField:
        name = _checked_name(field.name)
        base = f"{owner}{_camel(field.name)}"
        members = list(_members(field.type))
        optional = any(isinstance(one, types.NoneType) for one in members)
        default = field.default if field.default_factory is NODEFAULT else _made_by(field.default_factory)
        may_be_absent = not positional and (field.required or default is None or default is msgspec.UNSET)
        if optional and may_be_absent:
            members = [one for one in members if not isinstance(one, types.NoneType)]
            nothing = field.required
        else:
            nothing = False
        made = self._value(members, base)
        if isinstance(made, ProtoField) and made.form is not Label.ONE:
            # Absent is empty: so it must be where the class says so, and where it may not be None.
            empty = field.required or (isinstance(default, _EMPTY) and not default)
            if positional or optional or not empty:
                made = ProtoField(name="", kind=self._box(base, made))
        kind = made.kind if isinstance(made, ProtoField) else made
        form = made.form if isinstance(made, ProtoField) else Label.ONE
        map_key = made.map_key if isinstance(made, ProtoField) else TEXT
        required = form is Label.ONE and not self._read_only and (positional or (field.required and not nothing))
        return ProtoField(
            name=name, key=field.encode_name, kind=kind, form=form, map_key=map_key, required=required, nothing=nothing
        )

    def _value(self, members: Sequence[types.Type], name: str) -> Kind | ProtoField:
        """A kind, or the field of a list or map."""
        if len(members) != 1:
            return self._union(members, name)
        (info,) = members
        match info:
            case types.Metadata():
                return self._value(_members(info.type), name)
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                return ProtoField(name="", kind=self._item(info.item_type, f"{name}Item"), form=Label.MANY)
            case types.TupleType() if info.item_types and all(one == info.item_types[0] for one in info.item_types):
                return ProtoField(name="", kind=self._item(info.item_types[0], f"{name}Item"), form=Label.MANY)
            case types.DictType():
                key = self._key(info.key_type)
                return ProtoField(
                    name="", kind=self._item(info.value_type, f"{name}Value"), form=Label.MAP, map_key=key
                )
            case _:
                return self._kind(info, name)

    def _kind(self, info: types.Type, name: str) -> Kind:
        match info:
            case types.BoolType():
                return BOOL
            case types.IntType():
                return INT
            case types.FloatType():
                return FLOAT
            case types.BytesType():
                return BYTES
            case types.DateTimeType():
                return TEXT if info.tz is False else Timestamp()
            case types.EnumType():
                return self._enum(info.cls)
            case types.LiteralType():
                return _literal(info)
            case types.TupleType():
                shape = self.add(ProtoShape(name, Style.TUPLE))
                for index, item in enumerate(info.item_types, start=1):
                    kind = self._item(item, f"{name}Item{index}")
                    shape.fields.append(ProtoField(name=f"item_{index}", kind=kind, required=True))
                return shape
            case types.StructType() | types.DataclassType() | types.NamedTupleType() | types.TypedDictType():
                return self._known(info)
            case _ if isinstance(info, _AS_TEXT):
                return TEXT
            case _:
                raise Unmapped(f"{_named(info)} has no mapping to protobuf; use a struct or a plain type")

    def _known(self, info: Any) -> Kind:
        cls = info.cls
        if cls in self._of:
            return self._of[cls]
        plain = getattr(cls, "__origin__", cls)
        if plain.__module__.startswith("stigmergy.") and plain not in (Blob, ModelSource):
            # Windows and claims: how they look inside is not for clients to depend on.
            raise Unmapped(f"{plain.__name__} has no mapping to protobuf; use its values")
        arguments = "".join(_camel(getattr(one, "__name__", str(one))) for one in getattr(cls, "__args__", ()))
        return self._struct(info, f"{plain.__name__}{arguments}", cls)

    def _item(self, info: types.Type, name: str) -> Kind:
        """What is in a list or map: there nothing can be absent, and no list be in a list."""
        made = self._value(_members(info), name)
        return self._box(name, made) if isinstance(made, ProtoField) else made

    def _box(self, name: str, inside: ProtoField) -> ProtoShape:
        shape = self.add(ProtoShape(name, Style.BOX))
        shape.fields.append(
            ProtoField(name="values", key="values", kind=inside.kind, form=inside.form, map_key=inside.map_key)
        )
        return shape

    def _union(self, members: Sequence[types.Type], name: str) -> ProtoShape:
        shape = self.add(ProtoShape(name, Style.UNION))
        for info in members:
            if isinstance(info, types.NoneType):
                shape.fields.append(ProtoField(name=NULL_NAME, kind=Nothing(), form=Label.MEMBER, json="null"))
                continue
            made = self._value(_members(info), f"{name}{_named(info)}")
            kind = self._box(f"{name}{_named(info)}", made) if isinstance(made, ProtoField) else made
            tagged = isinstance(info, types.StructType) and info.tag is not None
            called = kind.type_name if isinstance(kind, ProtoShape) and kind.style is Style.STRUCT else _named(info)
            shape.fields.append(
                ProtoField(
                    name=snake(called),
                    kind=kind,
                    form=Label.MEMBER,
                    tag=str(getattr(info, "tag", "")) if tagged else "",
                    json="" if tagged else _json_of(info),
                )
            )
        _check_distinct(shape)
        return shape

    def _key(self, info: types.Type) -> Scalar:
        match info:
            case types.IntType():
                return INT
            case types.BoolType():
                return BOOL
            case _ if isinstance(info, _AS_TEXT):
                return TEXT
            case types.EnumType() if all(isinstance(member.value, str) for member in info.cls):
                return TEXT
            case _:
                raise Unmapped(f"a map by {_named(info)} has no mapping to protobuf; use texts or whole numbers")

    def _enum(self, cls: type[enum.Enum]) -> EnumKind:
        found = self._of.get(cls)
        if not isinstance(found, EnumKind):
            self._check_name(cls.__name__)
            found = self._of[cls] = self.enums[cls.__name__] = EnumKind(cls.__name__, cls)
        return found


def _members(info: types.Type) -> Sequence[types.Type]:
    return info.types if isinstance(info, types.UnionType) else (info,)


def _made_by(factory: Any) -> Any:
    """What a field defaults to; unknown where making it fails."""
    try:
        return factory()
    except Exception:
        return NODEFAULT


def _literal(info: types.LiteralType) -> Scalar:
    for cls, kind in ((bool, BOOL), (int, INT), (str, TEXT)):
        if all(type(value) is cls for value in info.values):
            return kind
    raise Unmapped(f"{_named(info)} of several types has no mapping to protobuf; use values of one type")


def _json_of(info: types.Type) -> str:
    match info:
        case types.BoolType():
            return "boolean"
        case types.IntType():
            return "integer"
        case types.FloatType():
            return "number"
        case types.EnumType() if all(isinstance(member.value, int) for member in info.cls):
            return "integer"
        case types.LiteralType() if all(isinstance(value, int) for value in info.values):
            return "integer"
        case types.StructType() | types.DataclassType() | types.TypedDictType() | types.DictType():
            return "object"
        case types.ListType() | types.VarTupleType() | types.TupleType() | types.SetType() | types.FrozenSetType():
            return "array"
        case types.NamedTupleType():
            return "array"
        case _:
            return "string"


def _named(info: types.Type) -> str:
    cls = getattr(info, "cls", None)
    return str(getattr(cls, "__name__", type(info).__name__.removesuffix("Type")))


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise Unmapped(f"{name!r} is no name of a protobuf field; use ASCII letters, digits and '_'")
    return name


def _check_distinct(shape: ProtoShape) -> None:
    """Protobuf's JSON has one name for `a_b` and `aB`, and protoc refuses both in one message."""
    seen = {shape.oneof: shape.oneof} if any(field.form is Label.MEMBER for field in shape.fields) else {}
    for field in shape.fields:
        json_name = field.name.replace("_", "").lower()
        if json_name in seen:
            raise Unmapped(f"protobuf cannot tell it from {seen[json_name]!r}; rename one of them", field.name)
        seen[json_name] = field.name
