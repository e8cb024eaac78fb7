"""The runtime `onnx`: ONNX Runtime on the CPU, one thread for a run unless more are given.

A model has one input of float32 and one or more outputs of numbers, side by side in an answer. The first dimension of
the input is the batch; where it is fixed at 1, rows run one by one. The arena is off: it would keep the memory of the
largest batch for ever. No library but onnxruntime and numpy is needed, and this module alone imports them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy
import onnxruntime

from stigmergy.base.errors import ModelFailed, ModelRefused
from stigmergy.models.bundle import Bundle
from stigmergy.models.runtime import LoadedModel, check_rows

SESSION_BYTES: Final = 500_000
"""What a session takes beside its weights, about."""
COPIES_COUNT: Final = 4
"""While it is loaded, weights are there as a file, parsed, as tensors, and as the kernels want them (measured)."""
_ERRORS_ONLY = 3
_NUMBERS = ("tensor(float)", "tensor(double)", "tensor(int64)", "tensor(int32)", "tensor(bool)")


def make_runtime() -> OnnxRuntime:
    """What `find_runtime` calls."""
    return OnnxRuntime()


class OnnxRuntime:
    """The ModelRuntime port."""

    name = "onnx"

    def load(self, bundle: Bundle, threads: int = 1) -> LoadedModel:
        """Opens a session, and runs one row of zeros, so that a model that cannot run is refused here."""
        session = open_session(bundle.payload, threads)
        manifest = bundle.manifest
        loaded = _OnnxModel(session, manifest.row_count, len(manifest.outputs), len(bundle.payload))
        try:
            loaded.run([bytes(manifest.row_bytes)])
        except ModelFailed as error:
            raise ModelRefused(f"it does not run: {error}") from None
        return loaded


def open_session(payload: bytes, threads: int = 1) -> Any:
    """A session of ONNX Runtime as nodes have it. Raises ModelRefused."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = _ERRORS_ONLY
    # A thread that spins between runs takes a core from the node.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(payload, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library has no root of its own errors
        raise ModelRefused(f"ONNX Runtime does not load it: {_first_line(error)}; export the model again") from None


class _OnnxModel:
    def __init__(self, session: Any, row_count: int, outputs_count: int, payload_bytes: int) -> None:
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if len(inputs) != 1 or inputs[0].type != "tensor(float)":
            raise ModelRefused("it must have one input, of float32; join its inputs and export it again")
        wrong = [output.name for output in outputs if output.type not in _NUMBERS]
        if wrong:
            raise ModelRefused(f"its output {wrong[0]!a} is no tensor of numbers; export it without (zipmap=False)")
        shape = inputs[0].shape
        self._is_single = shape[:1] == [1]
        fixed = [size for size in shape[1:] if isinstance(size, int)]
        # One dimension may be open, or there are no more than two: a row then goes where its size fits.
        self._shape = [size if isinstance(size, int) else -1 for size in shape[1:]]
        if self._shape.count(-1) > 1 or (-1 not in self._shape and math.prod(fixed) != row_count):
            raise ModelRefused(
                f"its input has the shape {shape}, its manifest rows of {row_count} numbers; pack it again"
            )
        if row_count % math.prod(fixed):
            raise ModelRefused(f"its input has the shape {shape}, into which no {row_count} numbers go; pack it again")
        self._shape = [size if size > 0 else row_count // math.prod(fixed) for size in self._shape]
        self._session = session
        self._input = inputs[0].name
        self._row_bytes = 4 * row_count
        self._outputs_count = outputs_count
        self.memory_bytes = COPIES_COUNT * payload_bytes + SESSION_BYTES

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        """The outputs of each row."""
        if self._session is None:
            raise ModelFailed("the model is closed; load it again")
        check_rows(rows, self._row_bytes)
        if self._is_single:
            return [answer for row in rows for answer in self._run([row])]
        return self._run(rows) if rows else []

    def close(self) -> None:
        """Ends the session."""
        self._session = None

    def feed(self, rows: Sequence[bytes]) -> list[dict[str, Any]]:
        """The rows as the session takes them: in one batch, or one by one where the model takes no more."""
        numbers = numpy.frombuffer(b"".join(rows), dtype="<f4").reshape(len(rows), *self._shape)
        return [{self._input: one[None]} for one in numbers] if self._is_single else [{self._input: numbers}]

    def _run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        (batch,) = self.feed(rows)
        try:
            found = self._session.run(None, batch)
            parts = [numpy.asarray(part).reshape(len(rows), -1) for part in found]
        except Exception as error:  # the library has no root of its own errors
            raise ModelFailed(f"ONNX Runtime: {_first_line(error)}") from None
        answers = parts[0] if len(parts) == 1 else numpy.concatenate(parts, axis=1)
        if answers.shape[1] != self._outputs_count:
            raise ModelFailed(
                f"the model gives {answers.shape[1]} numbers for a row, its manifest names {self._outputs_count}"
            )
        return list(map(tuple, answers.astype(float, copy=False).tolist()))


def arrays_of(bundle: Bundle, rows: Sequence[bytes]) -> list[dict[str, Any]]:
    """Rows as ONNX Runtime takes them, by the name of the input; what quantising calibrates with."""
    session = open_session(bundle.payload)
    manifest = bundle.manifest
    return _OnnxModel(session, manifest.row_count, len(manifest.outputs), len(bundle.payload)).feed(rows)


def names_in(payload: bytes, steps: int) -> tuple[list[str], list[str]]:
    """The names of inputs and outputs: from the metadata of the file, else made from its tensors; a list that cannot be
    made is empty. Raises ModelRefused."""
    session = open_session(payload)
    said = session.get_modelmeta().custom_metadata_map
    inputs = [name.strip() for name in said.get("inputs", "").split(",") if name.strip()]
    outputs = [name.strip() for name in said.get("outputs", "").split(",") if name.strip()]
    if not inputs:
        (tensor,) = session.get_inputs()[:1]
        inputs = _numbered(tensor.name, tensor.shape[1:], steps)
    if not outputs:
        parts = [_numbered(tensor.name, tensor.shape[1:], 1) for tensor in session.get_outputs()]
        outputs = [name for part in parts for name in part] if all(parts) else []
    return inputs, outputs


def _numbered(name: str, shape: Sequence[Any], steps: int) -> list[str]:
    if not all(isinstance(size, int) for size in shape):
        return []
    count = math.prod(shape) // steps
    return [name] if count == 1 else [f"{name}{index}" for index in range(count)]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
