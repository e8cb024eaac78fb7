"""Bundles: a model, what it takes and gives, and who vouches for it, as one signed file. Pure.

    gas-alarm-1.2.0.model = head (29 bytes) + manifest (msgpack) + payload + end (97 bytes)

    bundle = read_bundle(data, trusted=[public_key], verifier=Ed25519Verifier())       # raises ModelRefused
    bundle = read_bundle(data, trusted, verifier, name="gas-alarm", version_min="1.2.0")
    bundle.manifest.name, .version, .runtime, .inputs, .outputs, .class_limits, .row_bytes
    bundle.payload, bundle.digest (32 bytes: BLAKE3 over head, manifest and payload), bundle.signer (public key)
    data = write_bundle(manifest, payload, signer)                                     # raises ModelRefused
    size = bundle_bytes(data[:HEAD_BYTES])          # how long the file must be; refuses one over its class
    bundle = inspect_bundle(data)                   # `model show`: checks the form, trusts nobody, never for a node

Read a file or an object in two steps: its first HEAD_BYTES, then as much as `bundle_bytes` says. So a hostile file
costs no more memory than its class allows. The signature covers head, manifest and payload, and is checked before the
manifest is decoded. `docs/formats.md`, "Bundles of models", has every byte.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from stigmergy.base.errors import ModelRefused
from stigmergy.base.trust import Signer, Verifier

FORMAT: Final = 1
SUFFIX: Final = ".model"
DIGEST_BYTES: Final = 32
MANIFEST_BYTES_MAX: Final = 1_000_000
INPUTS_COUNT_MAX: Final = 65_536
"""Numbers in one row."""
NAMES_COUNT_MAX: Final = 4_096
OUTPUTS_COUNT_MAX: Final = 1_024
EXAMPLES_COUNT_MAX: Final = 1_000
NAME_CHARS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 500

_MAGIC = b"stigmergy-model"
_HEAD = struct.Struct("<15sBBIQ")
_END = struct.Struct("<B32s64s")
HEAD_BYTES: Final = _HEAD.size
END_BYTES: Final = _END.size

_DIGEST_CONTEXT = "stigmergy 2026 model bundle"
_PAYLOAD_CONTEXT = "stigmergy 2026 model payload"
_DOMAIN = b"stigmergy.model.bundle@1"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
_Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
_Values = Annotated[tuple[float, ...], Meta(max_length=OUTPUTS_COUNT_MAX)]


class ModelClass(StrEnum):
    """What a device must have to spare for a model."""

    TINY = "tiny"
    EDGE = "edge"
    SERVER = "server"


class ClassLimits(Struct, frozen=True):
    """The limits of a class."""

    bundle_bytes_max: int
    """Of the whole file."""
    latency_s_max: float
    """At the 99th percentile, one row at a time, on the machine at hand."""
    memory_bytes_max: int
    """What the process grows by when it is loaded; the first session of ONNX Runtime alone takes 10 MB."""


CLASSES: Final = {
    ModelClass.TINY: ClassLimits(1_000_000, 0.010, 32_000_000),
    ModelClass.EDGE: ClassLimits(30_000_000, 0.050, 250_000_000),
    ModelClass.SERVER: ClassLimits(150_000_000, 0.200, 1_000_000_000),
}
_ORDER = tuple(CLASSES)
BUNDLE_BYTES_MAX: Final = max(limits.bundle_bytes_max for limits in CLASSES.values())


class AcceptedMetric(Struct, frozen=True, array_like=True):
    """A figure that a model was accepted with."""

    name: _Name
    value: float


class Note(Struct, frozen=True, array_like=True):
    """Something to know about a model: the seed of its training, the digest of its data, what it was quantised from."""

    name: _Name
    text: _Text


class Example(Struct, frozen=True, array_like=True):
    """Inputs, and what the model answered when it was packed."""

    inputs: Annotated[bytes, Meta(max_length=4 * INPUTS_COUNT_MAX)]
    """Little-endian float32."""
    outputs: _Values


class Manifest(Struct, frozen=True, kw_only=True, array_like=True):
    """What a bundle says about its model. A new field goes to the end and has a default."""

    name: _Name
    """Small letters, digits and dashes."""
    version: _Name
    """Three numbers: 1.2.0."""
    runtime: _Name
    """Who can load the payload: "onnx", "forest"."""
    model_class: ModelClass
    inputs: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=NAMES_COUNT_MAX)]
    """The names of the numbers of a row; of one step, where a row is several steps, as from a window."""
    outputs: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=OUTPUTS_COUNT_MAX)]
    steps: Annotated[int, Meta(ge=1, le=INPUTS_COUNT_MAX)] = 1
    """Steps in a row, the oldest first."""
    licence: _Text = ""
    metrics: Annotated[tuple[AcceptedMetric, ...], Meta(max_length=100)] = ()
    notes: Annotated[tuple[Note, ...], Meta(max_length=100)] = ()
    examples: Annotated[tuple[Example, ...], Meta(max_length=EXAMPLES_COUNT_MAX)] = ()
    tolerance: float = 1e-4
    """How far an answer may be from the recorded one on another machine, relative or absolute."""
    payload_digest: Annotated[bytes, Meta(max_length=DIGEST_BYTES)] = b""
    """BLAKE3; `write_bundle` fills it in."""

    @property
    def class_limits(self) -> ClassLimits:
        """What its class allows."""
        return CLASSES[self.model_class]

    @property
    def row_count(self) -> int:
        """Numbers in one row."""
        return len(self.inputs) * self.steps

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return 4 * self.row_count

    def input_names(self) -> list[str]:
        """A name for each number of a row: `co`, or `co[0]` to `co[7]` where a row is eight steps."""
        if self.steps == 1:
            return list(self.inputs)
        return [f"{name}[{step}]" for step in range(self.steps) for name in self.inputs]


class Bundle(Struct, frozen=True):
    """A model that has been read."""

    manifest: Manifest
    payload: bytes
    digest: bytes
    """Names these very bytes of head, manifest and payload, whoever signed them."""
    signer: bytes = b""
    """The public key; empty if nobody signed it."""
    size_bytes: int = 0
    """Of the whole file."""

    @property
    def file_name(self) -> str:
        """What the file is called."""
        return f"{self.manifest.name}-{self.manifest.version}{SUFFIX}"


_decoder = msgspec.msgpack.Decoder(Manifest)
_encoder = msgspec.msgpack.Encoder()


def version_key(version: str) -> tuple[int, int, int]:
    """To compare versions by. Raises ModelRefused."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ModelRefused(f"version {version[:NAME_CHARS_MAX]!a} is not three numbers; write one like 1.2.0")
    return int(found[1]), int(found[2]), int(found[3])


def write_bundle(manifest: Manifest, payload: bytes, signer: Signer | None = None) -> bytes:
    """The file. Without a signer no node takes it. Raises ModelRefused for what readers would refuse."""
    manifest = msgspec.structs.replace(manifest, payload_digest=_payload_digest(payload))
    described = _encoder.encode(manifest)
    _check_manifest(_decode(described))
    number = _ORDER.index(manifest.model_class)
    head = _HEAD.pack(_MAGIC, FORMAT, number, len(described), len(payload))
    bundle_bytes(head)
    content = head + described + payload
    if signer is None:
        return content + _END.pack(0, b"", b"")
    return content + _END.pack(signer.algorithm, signer.public_key, signer.sign(_statement(_digest(content))))


def bundle_bytes(head: bytes) -> int:
    """How long the file is that begins so. Raises ModelRefused if it is no bundle, or too long for its class."""
    if len(head) < HEAD_BYTES:
        raise ModelRefused(f"cut off: a bundle has more than {HEAD_BYTES} bytes; fetch it again")
    magic, number, model_class, manifest_bytes, payload_bytes = _HEAD.unpack_from(head)
    if magic != _MAGIC:
        raise ModelRefused("not a bundle of a model; make one with `stigmergy model pack`")
    if number != FORMAT:
        raise ModelRefused(f"a bundle of format {number}; this version reads format {FORMAT}: update stigmergy here")
    if model_class >= len(_ORDER):
        raise ModelRefused(f"damaged: there is no class {model_class}; fetch the bundle again")
    if manifest_bytes > MANIFEST_BYTES_MAX:
        raise ModelRefused(f"a manifest of {manifest_bytes} bytes, at most {MANIFEST_BYTES_MAX}; record fewer examples")
    size_bytes: int = HEAD_BYTES + manifest_bytes + payload_bytes + END_BYTES
    limit_bytes = CLASSES[_ORDER[model_class]].bundle_bytes_max
    if size_bytes > limit_bytes:
        raise ModelRefused(
            f"{size_bytes} bytes, over the {limit_bytes} of class {_ORDER[model_class]}; quantise it, or pack it for "
            "a larger class"
        )
    return size_bytes


def read_bundle(
    data: bytes, trusted: Sequence[bytes], verifier: Verifier, *, name: str = "", version_min: str = ""
) -> Bundle:
    """The bundle, if one of the trusted keys has signed it. `name` is the model that it must be, `version_min` the
    version that it must not be older than. Raises ModelRefused."""
    digest, algorithm, key, signature = _checked_form(data)
    if not algorithm:
        raise ModelRefused("nobody has signed this bundle; pack it with --key FILE")
    if key not in trusted:
        raise ModelRefused(
            f"signed by {key.hex()}, which is not among the model_keys of this node; add it, or sign anew"
        )
    if not verifier.verify(algorithm, key, _statement(digest), signature):
        raise ModelRefused("damaged or forged: the signature does not cover these bytes; fetch the bundle again")
    bundle = _decoded(data, digest, key)
    manifest = bundle.manifest
    if name and manifest.name != name:
        raise ModelRefused(f"this is the model {manifest.name!r}, not {name!r}; it was renamed, fetch the right one")
    if version_min and version_key(manifest.version) < version_key(version_min):
        raise ModelRefused(f"version {manifest.version} is older than {version_min}, which was here; roll back by rule")
    return bundle


def inspect_bundle(data: bytes) -> Bundle:
    """The bundle as it says it is, whoever signed it. For people, never for a node. Raises ModelRefused."""
    digest, algorithm, key, _ = _checked_form(data)
    return _decoded(data, digest, key if algorithm else b"")


def is_signed(data: bytes, verifier: Verifier) -> bool:
    """Whether the key in it has signed it. Raises ModelRefused if it is no bundle."""
    digest, algorithm, key, signature = _checked_form(data)
    return bool(algorithm) and verifier.verify(algorithm, key, _statement(digest), signature)


def _checked_form(data: bytes) -> tuple[bytes, int, bytes, bytes]:
    """Its digest, and the three parts of its end."""
    size_bytes = bundle_bytes(data[:HEAD_BYTES])
    if len(data) != size_bytes:
        what = "cut off" if len(data) < size_bytes else "too long"
        raise ModelRefused(f"{what}: {len(data)} bytes, its head says {size_bytes}; fetch the bundle again")
    algorithm, key, signature = _END.unpack_from(data, size_bytes - END_BYTES)
    return _digest(memoryview(data)[:-END_BYTES]), algorithm, key, signature


def _decoded(data: bytes, digest: bytes, signer: bytes) -> Bundle:
    _, _, model_class, manifest_bytes, _ = _HEAD.unpack_from(data)
    manifest = _decode(data[HEAD_BYTES : HEAD_BYTES + manifest_bytes])
    _check_manifest(manifest)
    if manifest.model_class != _ORDER[model_class]:
        raise ModelRefused("damaged: head and manifest name different classes; fetch the bundle again")
    payload = data[HEAD_BYTES + manifest_bytes : -END_BYTES]
    if manifest.payload_digest != _payload_digest(payload):
        raise ModelRefused("damaged: the payload is not the one that the manifest names; fetch the bundle again")
    return Bundle(manifest, payload, digest, signer, len(data))


def _decode(described: bytes) -> Manifest:
    try:
        return _decoder.decode(described)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelRefused(f"its manifest cannot be read ({error}); pack it again") from None


def _check_manifest(manifest: Manifest) -> None:
    """What types do not say. Raises ModelRefused."""
    if not _NAME.fullmatch(manifest.name):
        raise ModelRefused(f"the name {manifest.name!a} is not small letters, digits and dashes; choose one that is")
    version_key(manifest.version)
    for what, names in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        if len(dict.fromkeys(names)) != len(names):
            raise ModelRefused(f"two {what} have one name; name each differently")
    if manifest.row_count > INPUTS_COUNT_MAX:
        raise ModelRefused(f"a row of {manifest.row_count} numbers, at most {INPUTS_COUNT_MAX}; reduce it beforehand")
    if not 0 <= manifest.tolerance < math.inf:
        raise ModelRefused(f"a tolerance of {manifest.tolerance}; give one from 0 up")
    for index, example in enumerate(manifest.examples):
        if len(example.inputs) != manifest.row_bytes or len(example.outputs) != len(manifest.outputs):
            raise ModelRefused(
                f"example {index} has {len(example.inputs) // 4} inputs and {len(example.outputs)} outputs, "
                f"the model has {manifest.row_count} and {len(manifest.outputs)}; record it again"
            )


def _digest(content: bytes | memoryview) -> bytes:
    return blake3(content, derive_key_context=_DIGEST_CONTEXT).digest()


def _payload_digest(payload: bytes) -> bytes:
    return blake3(payload, derive_key_context=_PAYLOAD_CONTEXT).digest()


def _statement(digest: bytes) -> bytes:
    """The signed bytes: with their domain, so that no signature of a node for anything else fits a bundle."""
    return _encoder.encode((_DOMAIN, digest))
