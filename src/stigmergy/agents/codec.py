"""Bytes of messages and states: msgpack by msgspec, bounded and canonical, with errors that explain what is wrong.

Received messages are kept and forwarded byte for byte; only our own are encoded here. The bytes of a state are
canonical: equal states have equal bytes on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, get_origin

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.agents.messages import Message, spec_of
from stigmergy.base.errors import Malformed, TooLarge, UnknownTag
from stigmergy.crdt.errors import CrdtError
from stigmergy.crdt.replicated import ReplicatedType

S = TypeVar("S")

MESSAGE_BYTES_MAX = 64 * 1024
ENVELOPE_FORMAT = 1
ENVELOPE_BYTES_MAX = 1024 * 1024
ENVELOPE_ITEMS_MAX = 10_000
NUMBERS_END = 2**63
SOURCE_CHARS_MAX = 256
REASON_CHARS_MAX = 500
NESTING_RESERVE = 100
"""Levels that reading a message must have left, because a restart may read it from deeper down its stack than the node
that kept it: what was read once must stay readable."""
SURELY_FLAT_BYTES = 256
"""A message of at most so many bytes cannot be nested so deep that reading it fails anywhere."""


def _plain(value: Any) -> Any:
    """The bytes in a state that represent a value that msgspec does not know."""
    return value.to_plain() if isinstance(value, ReplicatedType) else _unknown(value)


def _unknown(value: Any) -> NoReturn:
    name = type(value).__name__
    if isinstance(value, ReplicatedType):
        raise TypeError(f"{name} is shared, and no part of a message; put its value there, or what is in it")
    raise TypeError(f"Encoding objects of type {name} is unsupported")


def _unplain(hint: Any, plain: Any) -> Any:
    cls = get_origin(hint) or hint
    if isinstance(cls, type) and issubclass(cls, ReplicatedType):
        try:
            return cls.from_plain(hint, plain)
        except CrdtError as error:
            raise ValueError(str(error)) from None
    raise ValueError(f"no {getattr(cls, '__name__', cls)} can be read from bytes")


_encoder = msgspec.msgpack.Encoder(enc_hook=_unknown)
_state_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_canonical = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")
_ADDRESS_IN_MEMORY = re.compile(r" at 0x[0-9a-fA-F]+")
# A float64 whose exponent is all ones: an infinity or a NaN. A rare hit inside other data only costs a second check.
_maybe_nan = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be; for text that is no UTF-8, Python's own error."""

encode = _encoder.encode
"""The bytes of a message or struct."""
encode_state = _state_encoder.encode
"""The bytes of an agent, shared fields included; equal states may have different ones."""


def state_decoder(cls: type[S]) -> msgspec.msgpack.Decoder[S]:
    """Reads the bytes of a state, shared fields included."""
    return msgspec.msgpack.Decoder(cls, dec_hook=_unplain)


def without_empty_end(value: Struct, fields_min: int) -> tuple[Any, ...]:
    """A struct that is written as an array, without empty fields at its end: those that came later than the first so
    many. So what does not use them has the bytes that it always had."""
    fields = structs.astuple(value)
    count = len(fields)
    while count > fields_min and not fields[count - 1]:
        count -= 1
    return fields[:count]


def tagged_without_empty_end(value: Struct, fields_min: int) -> tuple[Any, ...]:
    """The same for a struct whose array begins with its tag."""
    return (value.__struct_config__.tag, *without_empty_end(value, fields_min))


class _Tagged(Struct):
    type: str = ""


class Envelope(Struct, array_like=True, frozen=True):
    """What travels: consecutive inputs of one source, the first with `sequence`. Its items are (address, message).

    A message is a byte string here and in a commit, no nested value: whatever is in it, what holds it stays readable.
    """

    format: int
    source: str
    incarnation: int
    epoch: int
    sequence: int
    items: list[tuple[str, bytes]]
    lost: int = 0
    """So many sequences right before the first will never come: the sender has shed or lost them."""

    @property
    def count(self) -> int:
        """How many items there are."""
        return len(self.items)


_tagged_decoder = msgspec.msgpack.Decoder(_Tagged)
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_raw_decoder = msgspec.msgpack.Decoder(msgspec.Raw)
_nest = b"\x91" * NESTING_RESERVE


def is_sound(body: bytes) -> bool:
    """Whether these bytes are not too many for a message, one whole value, and not nested too deep."""
    if len(body) > MESSAGE_BYTES_MAX:
        return False
    try:
        _raw_decoder.decode(_nest + body)
    except UNDECODABLE:
        return False
    return True


def keepable(body: bytes) -> bytes:
    """The bytes of an input that failed, as they came; nothing of one that is larger than a message may be."""
    return body if len(body) <= MESSAGE_BYTES_MAX else b""


def printable(text: object, chars_max: int) -> str:
    """A text cut to its limit, without what has no bytes in UTF-8."""
    short = str(text)[:chars_max]
    return short if short.isascii() else short.encode("utf-8", "replace").decode()


def describe(error: Exception) -> str:
    """An error as text that is the same in every run: no addresses, no traceback, bounded."""
    try:
        text = str(error)
    except Exception:
        text = "an error that cannot be shown"
    return printable(_ADDRESS_IN_MEMORY.sub("", f"{type(error).__name__}: {text}"), REASON_CHARS_MAX)


def pack_envelope(
    source: str,
    items: Sequence[tuple[str, Message]],
    *,
    sequence: int,
    incarnation: int = 0,
    epoch: int = 0,
    lost: int = 0,
) -> bytes:
    """The bytes of an envelope. Raises Malformed for what has none."""
    try:
        raw_items = [(address, encode(message)) for address, message in items]
        return encode(Envelope(ENVELOPE_FORMAT, source, incarnation, epoch, sequence, raw_items, lost))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(
            f"this cannot be put into an envelope ({error}); give (address, message) pairs whose fields have values of "
            "their types, and whole numbers of at most 64 bits"
        ) from None


def open_envelope(data: bytes) -> Envelope:
    """Decodes and bounds an envelope. Its messages are looked at later, one by one: a bad one harms no other."""
    if len(data) > ENVELOPE_BYTES_MAX:
        raise TooLarge(f"an envelope of {len(data)} bytes, {ENVELOPE_BYTES_MAX} at most; send fewer items in one")
    try:
        envelope = _envelope_decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"not an envelope ({error}); docs/formats.md describes its bytes") from None
    if envelope.format != ENVELOPE_FORMAT:
        raise Malformed(f"envelope format {envelope.format}, this version reads {ENVELOPE_FORMAT}; update this node")
    if len(envelope.source) > SOURCE_CHARS_MAX:
        raise TooLarge(f"a source name of {len(envelope.source)} characters, {SOURCE_CHARS_MAX} at most")
    if envelope.sequence < 1 or min(envelope.incarnation, envelope.epoch, envelope.lost) < 0 or not envelope.source:
        raise Malformed("an envelope needs a source, a sequence from 1 upward, and no negative number")
    if max(envelope.sequence, envelope.incarnation, envelope.epoch) >= NUMBERS_END - ENVELOPE_ITEMS_MAX:
        raise Malformed("an envelope's numbers are below 2**63; count from 1")
    if len(envelope.items) > ENVELOPE_ITEMS_MAX:
        raise TooLarge(f"an envelope of {len(envelope.items)} items, {ENVELOPE_ITEMS_MAX} at most; send fewer in one")
    return envelope


def tag_of(body: bytes) -> str:
    """The tag of a message's bytes, or an empty string if they have none."""
    try:
        return _tagged_decoder.decode(body).type
    except UNDECODABLE:
        return ""


def explain_undecodable(kind: str, body: bytes, known: frozenset[str], error: Exception) -> Malformed | UnknownTag:
    """Says why a message could not be decoded for an agent of this kind."""
    tag = tag_of(body)
    if tag and tag not in known:
        return UnknownTag(f"{kind} has no handler for {tag}; it knows {', '.join(sorted(known)) or 'no message'}")
    return Malformed(f"{tag or 'a message without a type'} for {kind} does not decode: {error}")


def canonical_bytes(value: Any) -> bytes:
    """The one byte string of a state: maps and sets in the order of their keys, every NaN the same NaN.

    0.0 and -0.0 are different states and have different bytes.
    """
    data = _canonical.encode(value)
    if _maybe_nan.search(data) is None:
        return data
    return _canonical.encode(_with_one_nan(msgspec.msgpack.decode(data)))


def readable(message: Any, wanted: Any, who: str) -> bytes:
    """The bytes of a message of ours, from which it can be read back; raises TypeError where it cannot."""
    cls = message.__class__
    if not isinstance(message, wanted):
        shown = message.__name__ if isinstance(message, type) else cls.__name__
        raise TypeError(f"{who} sends messages, made from their classes; {shown} is none that it can send")
    body = encode(message)
    decode = _decoders.get(cls)
    if decode is None:
        decode = _decoders[cls] = _decoder_of(cls)
    try:
        decode(body)
    except UNDECODABLE as error:
        raise TypeError(
            f"{cls.__name__} cannot be read back from its own bytes: {error}; give each field a value of its type"
        ) from None
    return body


_decoders: dict[type, Callable[[bytes], Any]] = {}
"""Made once for each class of messages that agents send."""


def _decoder_of(cls: type) -> Callable[[bytes], Any]:
    try:
        return msgspec.msgpack.Decoder(cls).decode
    except (NameError, TypeError):
        return msgspec.msgpack.decode  # defined where its annotations cannot be looked up, so nobody can decode it


def digest_of(message: Message) -> bytes:
    """Tells a message from others, however it was written: 16 bytes of BLAKE3 over [tag, fields], in canonical bytes.

    Fields that have their defaults are left out, so that a class may get new ones between a message and its repetition.
    Empty for one without canonical bytes: with a set of values that have no order.
    """
    names, defaults = message.__struct_fields__, message.__struct_defaults__
    fields = {name: getattr(message, name) for name in names}
    try:
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            # 0.0 == -0.0, and 1 == True: only the bytes say whether they are the same.
            if fields[name] == default and canonical_bytes(fields[name]) == canonical_bytes(default):
                del fields[name]
        data = canonical_bytes((spec_of(type(message)).tag, fields))
    except (TypeError, RecursionError):
        return b""
    return blake3(data).digest(length=16)


def _with_one_nan(value: Any) -> Any:
    match value:
        case float():
            return math.nan if math.isnan(value) else value
        case dict():
            return {key: _with_one_nan(item) for key, item in value.items()}
        case list():
            return [_with_one_nan(item) for item in value]
        case _:
            return value
