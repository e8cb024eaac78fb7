"""Packs a model: describes it, records what it answers to examples, signs it.

Names are those that are given, else those in the metadata of an ONNX file (`inputs` and `outputs`, separated by
commas), else they are made from its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from stigmergy.base.errors import ModelFailed, ModelRefused
from stigmergy.base.trust import Signer
from stigmergy.models.bundle import (
    BUNDLE_BYTES_MAX,
    CLASSES,
    HEAD_BYTES,
    Bundle,
    Example,
    Manifest,
    ModelClass,
    bundle_bytes,
    inspect_bundle,
    write_bundle,
)
from stigmergy.models.examples import spread
from stigmergy.models.forest import read_forest, write_forest
from stigmergy.models.runtimes import find_runtime

RECORDED_COUNT: Final = 32
_SIZES = tuple(CLASSES)


def read_file(path: Path) -> bytes:
    """A bundle from a file, and no byte more than its class allows. Raises ModelRefused."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            return head + file.read(bundle_bytes(head) - len(head) + 1)
    except OSError as error:
        raise ModelRefused(f"cannot read {str(path)!a}: {error.strerror}; give the path of a bundle") from None


def read_payload(path: Path) -> tuple[str, bytes]:
    """The runtime for a file and its payload: `.onnx`, or a forest as `.json`. Raises ModelRefused."""
    try:
        with path.open("rb") as file:
            data = file.read(BUNDLE_BYTES_MAX + 1)
    except OSError as error:
        raise ModelRefused(
            f"cannot read {str(path)!a}: {error.strerror}; give a .onnx file, or a forest as .json"
        ) from None
    if len(data) > BUNDLE_BYTES_MAX:
        raise ModelRefused(
            f"{str(path)!a} is over {BUNDLE_BYTES_MAX} bytes, what the largest class allows; quantise it"
        )
    if path.suffix == ".json":
        return "forest", write_forest(read_forest(data))
    return "onnx", data


def describe(
    runtime: str, payload: bytes, inputs: Sequence[str], outputs: Sequence[str], steps: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of inputs and outputs. Raises ModelRefused if they are neither given nor to be found."""
    if runtime == "onnx" and not (inputs and outputs):
        from stigmergy.models.onnx_runtime import names_in

        found_inputs, found_outputs = names_in(payload, steps)
        inputs, outputs = inputs or found_inputs, outputs or found_outputs
    for what, names in (("inputs", inputs), ("outputs", outputs)):
        if not names:
            raise ModelRefused(f"the file does not say what its {what} are; name them: --{what} first,second")
    return tuple(inputs), tuple(outputs)


def pack(manifest: Manifest, payload: bytes, rows: Sequence[bytes], signer: Signer | None) -> bytes:
    """A bundle with recorded answers to some of these rows. Raises ModelRefused."""
    manifest = msgspec.structs.replace(manifest, examples=())
    bundle = inspect_bundle(write_bundle(manifest, payload))
    chosen = [rows[index] for index in spread(RECORDED_COUNT, len(rows))]
    answers = answers_of(bundle, chosen)
    for index, answer in enumerate(answers):
        if not all(map(math.isfinite, answer)):
            raise ModelRefused(f"its answer to example {index} of {len(chosen)} is no number; leave such rows out")
    examples = tuple(Example(row, answer) for row, answer in zip(chosen, answers, strict=True))
    return write_bundle(msgspec.structs.replace(manifest, examples=examples), payload, signer)


def answers_of(bundle: Bundle, rows: Sequence[bytes], at_once: int = 256) -> list[tuple[float, ...]]:
    """What a model answers. Raises ModelRefused."""
    loaded = find_runtime(bundle.manifest.runtime).load(bundle, 1)
    try:
        return [
            answer for start in range(0, len(rows), at_once) for answer in loaded.run(rows[start : start + at_once])
        ]
    except ModelFailed as error:
        raise ModelRefused(str(error)) from None
    finally:
        loaded.close()


def smallest_class(payload_bytes: int) -> ModelClass:
    """The smallest class that has room for it and its manifest."""
    room = CLASSES[ModelClass.TINY].bundle_bytes_max // 10
    for size in _SIZES:
        if payload_bytes + room <= CLASSES[size].bundle_bytes_max:
            return size
    return _SIZES[-1]
