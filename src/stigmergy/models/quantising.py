"""Makes the weights of an ONNX model INT8, each channel with its own scale, and says what that costs and saves.

Two ways are tried: `dynamic` scales activations at every run; `static` scales them once, by the examples, and is faster
where the layers are large. The faster of those that are smaller and lose no more than allowed is taken. Loss is the
mean loss of AUC where the examples have right answers of zeros and ones, else the largest difference of an output.
Needs the packages onnx and onnxruntime; for the workshop, not for a device.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ModelRefused
from stigmergy.models.bundle import Bundle
from stigmergy.models.checking import difference_of, measure
from stigmergy.models.examples import Examples, area_under_curve, spread
from stigmergy.models.packing import answers_of
from stigmergy.models.runtimes import find_runtime

WAYS: Final = ("dynamic", "static")
CALIBRATION_ROWS_MAX: Final = 1_000
TIMED_RUNS_COUNT: Final = 300
QUANTISED_TOLERANCE: Final = 0.02
"""Processors round INT8 differently: some have instructions for it, and some saturate on the way."""


class Quantised(Struct, frozen=True):
    """One form of a model, beside the one it was made from."""

    way: str
    """"float" for the model as it was."""
    payload: bytes
    largest_difference: float
    accuracy: float | None
    """The mean AUC over outputs; None without right answers of zeros and ones."""
    p50_s: float
    loss: float
    """What counts when one is chosen."""


def quantise(bundle: Bundle, examples: Examples, ways: Sequence[str] = WAYS) -> list[Quantised]:
    """The model as it was, and in each way INT8. Raises ModelRefused."""
    if bundle.manifest.runtime != "onnx":
        raise ModelRefused(f"a model of runtime {bundle.manifest.runtime!a} has no INT8 form; quantise an ONNX model")
    reference = answers_of(bundle, examples.rows)
    payloads = {"float": bundle.payload} | {way: _converted(bundle, examples.rows, way) for way in ways}
    found: list[Quantised] = []
    for way, payload in payloads.items():
        changed = msgspec.structs.replace(bundle, payload=payload)
        answers = answers_of(changed, examples.rows)
        difference = max(difference_of(answer, before) for answer, before in zip(answers, reference, strict=True))
        accuracy = _accuracy(examples.labels, answers)
        was = found[0].accuracy if found else accuracy
        loss = difference if accuracy is None or was is None else was - accuracy
        found.append(Quantised(way, payload, difference, accuracy, _time(changed, examples.rows), loss))
    return found


def choose(found: Sequence[Quantised], loss_max: float) -> Quantised:
    """The fastest INT8 form that is smaller and loses no more than that. Raises ModelRefused."""
    was, *forms = found
    kept = [one for one in forms if one.loss <= loss_max]
    if not kept:
        raise ModelRefused(
            f"each INT8 form loses more than {loss_max:g}; allow more with --loss-max, or keep the model"
        )
    smaller = [one for one in kept if len(one.payload) < len(was.payload)]
    if not smaller:
        raise ModelRefused("no INT8 form is smaller: its layers are too small for that to pay; keep the model")
    return min(smaller, key=lambda one: one.p50_s)


def _accuracy(labels: Sequence[tuple[float, ...]], answers: Sequence[tuple[float, ...]]) -> float | None:
    if not labels:
        return None
    pairs = zip(zip(*labels, strict=True), zip(*answers, strict=True), strict=True)
    areas = [area for right, scores in pairs if (area := area_under_curve(right, scores)) is not None]
    return sum(areas) / len(areas) if areas else None


def _time(bundle: Bundle, rows: Sequence[bytes]) -> float:
    loaded = find_runtime("onnx").load(bundle, 1)
    try:
        return measure(loaded, rows, runs_count=TIMED_RUNS_COUNT).p50_s
    finally:
        loaded.close()


def _converted(bundle: Bundle, rows: Sequence[bytes], way: str) -> bytes:
    try:
        import onnx
        from onnxruntime import quantization
    except ModuleNotFoundError as error:
        raise ModelRefused(f"to quantise needs the package {error.name!r}: pip install onnx onnxruntime") from None
    shared: dict[str, Any] = {"per_channel": True, "weight_type": quantization.QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        made = Path(folder) / "int8.onnx"
        try:
            model = onnx.load_from_string(bundle.payload)
            if way == "static":
                quantization.quantize_static(model, made, _Rows(bundle, rows), **shared)
            else:
                quantization.quantize_dynamic(model, made, **shared)
        except Exception as error:  # the libraries have no root of their own errors
            raise ModelRefused(f"ONNX Runtime cannot make it INT8 ({way}): {error}; leave it as it is") from None
        return made.read_bytes()


class _Rows:
    """What ONNX Runtime asks for rows to calibrate with: one batch, then the end."""

    def __init__(self, bundle: Bundle, rows: Sequence[bytes]) -> None:
        from stigmergy.models.onnx_runtime import arrays_of

        chosen = [rows[index] for index in spread(CALIBRATION_ROWS_MAX, len(rows))]
        self._batches = iter(arrays_of(bundle, chosen))

    def get_next(self) -> dict[str, Any] | None:
        """The next batch, by the name of the input."""
        return next(self._batches, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._batches


@contextmanager
def _quiet() -> Iterator[None]:
    """Its advice to simplify the model first goes to stderr; the session simplifies it when it is opened."""
    with redirect_stderr(io.StringIO()):
        yield
