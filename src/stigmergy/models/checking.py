"""Checks a bundle on the machine at hand: signature, class (size, memory, latency), and the answers it was packed with.

A finding is a sentence that says what to do. What cannot be known because of an earlier finding is left out.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from stigmergy.base.errors import ModelFailed, ModelRefused
from stigmergy.base.trust import Verifier
from stigmergy.models.bundle import Bundle, Manifest, inspect_bundle, is_signed, read_bundle
from stigmergy.models.runtime import LoadedModel, ModelRuntime
from stigmergy.models.runtimes import find_runtime

RUNS_COUNT: Final = 1_000
MEASURE_S_MAX: Final = 5.0
WARM_RUNS_COUNT: Final = 10

Now = Callable[[], float]


class ModelTiming(Struct, frozen=True):
    """How long one row takes, one at a time."""

    runs_count: int
    p50_s: float
    p99_s: float


class ModelCheck(Struct, frozen=True):
    """What was found about a bundle."""

    findings: list[str]
    """Empty: it may be used here."""
    bundle: Bundle | None = None
    memory_bytes: int | None = None
    timing: ModelTiming | None = None
    largest_difference: float | None = None
    """Between an answer here and the recorded one."""


def check_bundle(
    data: bytes,
    trusted: Sequence[bytes] | None,
    verifier: Verifier,
    *,
    find: Callable[[str], ModelRuntime] = find_runtime,
    now_s: Now = time.perf_counter,
) -> ModelCheck:
    """Checks everything; without trusted keys, whether the key in it has signed it."""
    findings: list[str] = []
    try:
        bundle = inspect_bundle(data)
        if trusted is not None:
            read_bundle(data, trusted, verifier)
        elif not is_signed(data, verifier):
            findings.append(
                "nobody has signed it, or the signature does not cover these bytes; pack it with --key FILE"
            )
    except ModelRefused as error:
        return ModelCheck([str(error)])
    manifest = bundle.manifest
    try:
        runtime = find(manifest.runtime)  # a library that it imports is not the model's
        before_bytes = _peak_bytes()
        loaded = runtime.load(bundle, 1)
    except ModelRefused as error:
        return ModelCheck([*findings, str(error)], bundle)
    try:
        difference = _compare(loaded, manifest, findings)
        timing = measure(loaded, [one.inputs for one in manifest.examples] or [bytes(manifest.row_bytes)], now_s=now_s)
    except ModelFailed as error:
        return ModelCheck([*findings, str(error)], bundle)
    finally:
        loaded.close()
    memory_bytes = max(loaded.memory_bytes, _peak_bytes() - before_bytes)
    limits = manifest.class_limits
    if memory_bytes > limits.memory_bytes_max:
        findings.append(
            f"it takes {memory_bytes} bytes of memory, class {manifest.model_class} allows {limits.memory_bytes_max}; "
            "make it smaller, or pack it for a larger class"
        )
    if timing.p99_s > limits.latency_s_max:
        findings.append(
            f"one row takes {timing.p99_s * 1000:.3g} ms (p99 of {timing.runs_count}), class {manifest.model_class} "
            f"allows {limits.latency_s_max * 1000:.3g} ms here; quantise it, or pack it for a larger class"
        )
    return ModelCheck(findings, bundle, memory_bytes, timing, difference)


def measure(
    loaded: LoadedModel, rows: Sequence[bytes], *, now_s: Now = time.perf_counter, runs_count: int = RUNS_COUNT
) -> ModelTiming:
    """Runs one row after the other, for at most MEASURE_S_MAX. Raises ModelFailed."""
    for index in range(WARM_RUNS_COUNT):
        loaded.run([rows[index % len(rows)]])
    took: list[float] = []
    began_s = now_s()
    for index in range(runs_count):
        row = [rows[index % len(rows)]]
        before_s = now_s()
        loaded.run(row)
        after_s = now_s()
        took.append(after_s - before_s)
        if after_s - began_s > MEASURE_S_MAX:
            break
    took.sort()
    return ModelTiming(len(took), took[len(took) // 2], took[len(took) * 99 // 100])


def difference_of(answer: Sequence[float], recorded: Sequence[float]) -> float:
    """The largest difference between two answers; infinity where only one is a number."""
    differences = [0.0]
    for value, expected in zip(answer, recorded, strict=True):
        if not (value == expected or (math.isnan(value) and math.isnan(expected))):
            difference = abs(value - expected)
            differences.append(math.inf if math.isnan(difference) else difference)
    return max(differences)


def _compare(loaded: LoadedModel, manifest: Manifest, findings: list[str]) -> float | None:
    examples = manifest.examples
    if not examples:
        findings.append(
            "it has no recorded examples, so nobody can tell whether it answers as it did; pack it with some"
        )
        return None
    answers = loaded.run([one.inputs for one in examples])
    differences = [difference_of(answer, one.outputs) for answer, one in zip(answers, examples, strict=True)]
    wrong = [
        index
        for index, one in enumerate(examples)
        if differences[index] > manifest.tolerance * max(1.0, *(abs(value) for value in one.outputs))
    ]
    if wrong:
        findings.append(
            f"{len(wrong)} of {len(examples)} answers differ from the recorded ones, by up to {max(differences):.3g} "
            f"(tolerance {manifest.tolerance:g}), the first in example {wrong[0]}; do not use it here"
        )
    return max(differences)


def _peak_bytes() -> int:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
