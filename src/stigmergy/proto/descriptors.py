"""Makes descriptors of shapes whose fields have numbers, and from these message classes and the text of a .proto file.

Needs protobuf, of the extra stigmergy[grpc]; no compiler. The bytes of these messages are those of protoc's classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2
from msgspec import Struct

from stigmergy.proto.numbers import FieldNumbers, NumberedMessage
from stigmergy.proto.shapes import (
    NULL,
    TIMESTAMP,
    VALUE,
    EnumKind,
    Kind,
    Label,
    ProtoField,
    ProtoShape,
    Scalar,
    ShapeBook,
)

_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Proto.TYPE_BOOL,
    "int64": _Proto.TYPE_INT64,
    "uint64": _Proto.TYPE_UINT64,
    "uint32": _Proto.TYPE_UINT32,
    "double": _Proto.TYPE_DOUBLE,
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
}
_IMPORTS = {"google/protobuf/struct.proto": (VALUE, NULL), "google/protobuf/timestamp.proto": (TIMESTAMP,)}
_FILES = {
    "google/protobuf/struct.proto": struct_pb2.DESCRIPTOR.serialized_pb,
    "google/protobuf/timestamp.proto": timestamp_pb2.DESCRIPTOR.serialized_pb,
}


class Method(Struct, frozen=True):
    """A method of the service."""

    name: str
    request: str
    reply: str
    about: str
    streams: bool = False


def describe(
    book: ShapeBook, numbers: FieldNumbers, package: str, service: str, methods: Sequence[Method]
) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of the whole file."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    used = {field.kind.type_name for shape in book.shapes.values() for field in shape.fields}
    file.dependency.extend(name for name, known in _IMPORTS.items() if any(one in used for one in known))
    for shape in book.shapes.values():
        _describe_message(file.message_type.add(name=shape.name), shape, numbers.messages[shape.name], package)
    for one in book.enums.values():
        _describe_enum(file.enum_type.add(name=one.type_name), one, numbers.enums[one.type_name])
    described = file.service.add(name=service)
    for method in methods:
        described.method.add(
            name=method.name,
            input_type=f".{package}.{method.request}",
            output_type=f".{package}.{method.reply}",
            server_streaming=method.streams or None,
        )
    return file


def _describe_message(message: Any, shape: ProtoShape, numbered: NumberedMessage, package: str) -> None:
    # Those of a choice come last, as in the text.
    fields = sorted(shape.fields, key=lambda field: (field.form is Label.MEMBER, field.number))
    if any(field.form is Label.MEMBER for field in fields):
        message.oneof_decl.add(name=shape.oneof)
    for field in fields:
        proto = message.field.add(name=field.name, number=field.number, label=_Proto.LABEL_OPTIONAL)
        if field.form is Label.MAP:
            entry = message.nested_type.add(name=_entry_name(field.name))
            entry.options.map_entry = True
            _type_of(entry.field.add(name="key", number=1, label=_Proto.LABEL_OPTIONAL), field.map_key, package)
            _type_of(entry.field.add(name="value", number=2, label=_Proto.LABEL_OPTIONAL), field.kind, package)
            proto.label, proto.type = _Proto.LABEL_REPEATED, _Proto.TYPE_MESSAGE
            proto.type_name = f".{package}.{shape.name}.{entry.name}"
            continue
        _type_of(proto, field.kind, package)
        if field.form is Label.MANY:
            proto.label = _Proto.LABEL_REPEATED
        elif field.form is Label.MEMBER:
            proto.oneof_index = 0
    # A singular field with presence is alone in a oneof that nobody sees, and those come after all others.
    for proto, field in zip(message.field, fields, strict=True):
        if field.form is Label.ONE and not field.kind.is_message:
            proto.proto3_optional, proto.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    for number in sorted(numbered.reserved.values()):
        message.reserved_range.add(start=number, end=number + 1)
    message.reserved_name.extend(sorted(numbered.reserved))


def _describe_enum(described: Any, one: EnumKind, numbered: NumberedMessage) -> None:
    described.value.add(name=one.unspecified, number=0)
    for name, number in sorted(one.numbers.items(), key=lambda pair: pair[1]):
        described.value.add(name=name, number=number)
    for number in sorted(numbered.reserved.values()):
        described.reserved_range.add(start=number, end=number)
    described.reserved_name.extend(sorted(numbered.reserved))


def _type_of(proto: Any, kind: Kind, package: str) -> None:
    if isinstance(kind, Scalar):
        proto.type = _SCALARS[kind.type_name]
        return
    proto.type = _Proto.TYPE_MESSAGE if kind.is_message else _Proto.TYPE_ENUM
    known = kind.type_name.startswith("google.")
    proto.type_name = f".{kind.type_name}" if known else f".{package}.{kind.type_name}"


def _entry_name(field: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def message_classes(file: descriptor_pb2.FileDescriptorProto) -> tuple[Any, dict[str, Any]]:
    """A pool with this file alone, and the classes of its messages by name."""
    pool = descriptor_pool.DescriptorPool()
    for name in file.dependency:
        pool.AddSerializedFile(_FILES[name])
    pool.Add(file)
    found = pool.FindFileByName(file.name)
    return pool, {name: message_factory.GetMessageClass(one) for name, one in found.message_types_by_name.items()}


# ---------------------------------------------------------------------- the text


def write_proto(
    book: ShapeBook, file: descriptor_pb2.FileDescriptorProto, methods: Sequence[Method], about: str
) -> str:
    """The text of the .proto file."""
    lines = [
        *(f"// {line}".rstrip() for line in about.splitlines()),
        'syntax = "proto3";',
        "",
        f"package {file.package};",
        "",
    ]
    lines += [f'import "{name}";' for name in file.dependency]
    lines += [""] * bool(file.dependency)
    (service,) = file.service
    lines.append(f"service {service.name} {{")
    for method in methods:
        stream = "stream " * method.streams
        lines += [f"  // {method.about}", f"  rpc {method.name}({method.request}) returns ({stream}{method.reply});"]
    lines.append("}")
    for message in file.message_type:
        lines += ["", *_message_lines(book.shapes[message.name], message)]
    for one in file.enum_type:
        lines += ["", f"enum {one.name} {{", *_reserved_lines(one)]
        lines += [f"  {value.name} = {value.number};" for value in one.value]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _message_lines(shape: ProtoShape, message: Any) -> Iterator[str]:
    for line in shape.about.splitlines():
        yield f"// {line}"
    fields = sorted(shape.fields, key=lambda field: field.number)
    reserved = list(_reserved_lines(message))
    if not fields and not reserved:
        yield f"message {shape.name} {{}}"
        return
    yield f"message {shape.name} {{"
    yield from reserved
    for field in fields:
        if field.form is not Label.MEMBER:
            yield f"  {_field_line(field)}"
    members = [field for field in fields if field.form is Label.MEMBER]
    if members:
        yield f"  oneof {shape.oneof} {{"
        yield from (f"    {_field_line(field)}" for field in members)
        yield "  }"
    yield "}"


def _field_line(field: ProtoField) -> str:
    bare = field.form is Label.MEMBER or (field.form is Label.ONE and field.kind.is_message)
    kind = field.kind.type_name if bare else field.type_name
    notes = [field.about, "required" if field.required else ""]
    note = "; ".join(one for one in notes if one)
    return f"{kind} {field.name} = {field.number};{f'  // {note}' if note else ''}"


def _reserved_lines(described: Any) -> Iterator[str]:
    if described.reserved_name:
        yield f"  reserved {', '.join(str(one.start) for one in described.reserved_range)};"
        names = ", ".join(f'"{name}"' for name in described.reserved_name)
        yield f"  reserved {names};"
