"""Explains one answer of a model: how much each input moved it away from what a baseline would have given. Pure.

    explain(loaded, bundle.manifest, row, baseline=(400.0, 210.0, 20.0)).contributions[0]    # Contribution("co", 0.61)

Shapley values are exact and share the difference out completely, also between inputs that only count together; their
runs double with each input. Occlusion puts one input after the other back to the baseline. An input is a column: where
a row is several steps, all steps of a column are moved together. Runs are bounded by RUNS_COUNT_MAX and go in batches
of BATCH_COUNT_MAX; this is slow work, not for the thread that answers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from stigmergy.base.errors import ModelFailed
from stigmergy.models.bundle import Manifest
from stigmergy.models.runtime import LoadedModel, pack_row

RUNS_COUNT_MAX: Final = 4_098
"""All columns that a manifest can name for occlusion; twelve inputs for Shapley values."""
BATCH_COUNT_MAX: Final = 256
SHAPLEY_COLUMNS_COUNT_MAX: Final = 12
CONTRIBUTIONS_COUNT: Final = 5


class ExplanationMethod(StrEnum):
    """How an answer is taken apart."""

    SHAPLEY = "shapley"
    OCCLUSION = "occlusion"


class Contribution(Struct, frozen=True):
    """What one input did to the answer."""

    name: str
    value: float
    """Positive: it made the output larger than the baseline's value of it would have."""


class Explanation(Struct, frozen=True):
    """Why an output has its value."""

    method: ExplanationMethod
    output: str
    value: float
    baseline_value: float
    """The output for the baseline alone."""
    contributions: tuple[Contribution, ...]
    """The largest ones, the largest first."""
    runs_count: int


def explain(
    loaded: LoadedModel,
    manifest: Manifest,
    row: bytes,
    baseline: Sequence[float],
    *,
    output: str = "",
    method: ExplanationMethod | None = None,
    count: int = CONTRIBUTIONS_COUNT,
) -> Explanation:
    """Explains one output, the first if none is named; `baseline` is a usual value of each input, or of a whole row.

    Without a method it is Shapley for up to SHAPLEY_COLUMNS_COUNT_MAX inputs, else occlusion. Raises ModelFailed.
    """
    columns = len(manifest.inputs)
    method = method or (
        ExplanationMethod.SHAPLEY if columns <= SHAPLEY_COLUMNS_COUNT_MAX else ExplanationMethod.OCCLUSION
    )
    if method is ExplanationMethod.SHAPLEY and columns > SHAPLEY_COLUMNS_COUNT_MAX:
        raise ModelFailed(
            f"Shapley values of {columns} inputs take 2**{columns} runs, there are at most {RUNS_COUNT_MAX} "
            f"({SHAPLEY_COLUMNS_COUNT_MAX} inputs); use occlusion"
        )
    if output and output not in manifest.outputs:
        raise ModelFailed(f"there is no output {output!a}; name one of {', '.join(manifest.outputs)}")
    output = output or manifest.outputs[0]
    mixer = _Mixer(manifest, row, baseline)
    everything = (1 << columns) - 1
    masks = range(everything + 1) if method is ExplanationMethod.SHAPLEY else _occluded(columns)
    values = _run(loaded, (mixer.mix(mask) for mask in masks), manifest.outputs.index(output))
    if not all(map(math.isfinite, values)):
        raise ModelFailed(
            "the answer, or one for a row between it and the baseline, is no number; there is no more to say"
        )
    if method is ExplanationMethod.SHAPLEY:
        shares = _shapley(values, columns)
    else:
        shares = [values[-1] - value for value in values[1:-1]]
    ranked = sorted(zip(manifest.inputs, shares, strict=True), key=lambda one: -abs(one[1]))[:count]
    contributions = tuple(Contribution(name, share) for name, share in ranked)
    return Explanation(method, output, values[-1], values[0], contributions, len(values))


class _Mixer:
    """Rows that have some columns of the row in question and the others of the baseline."""

    def __init__(self, manifest: Manifest, row: bytes, baseline: Sequence[float]) -> None:
        if len(row) != manifest.row_bytes:
            raise ModelFailed(
                f"a row of {len(row)} bytes, the model takes {manifest.row_bytes}; give the inputs it had"
            )
        columns = len(manifest.inputs)
        if len(baseline) not in (columns, manifest.row_count):
            raise ModelFailed(f"a baseline of {len(baseline)} numbers; give {columns}, one for each input")
        usual = baseline if len(baseline) == manifest.row_count else [*baseline] * manifest.steps
        self._columns = columns
        self._row, self._usual = _cells(row), _cells(pack_row(usual))

    def mix(self, mask: int) -> bytes:
        """Bit n of the mask: column n is that of the row."""
        columns = self._columns
        mixed, other = self._usual[:], self._row
        if mask.bit_count() > columns // 2:  # begin with what most of it is
            mask ^= (1 << columns) - 1
            mixed, other = self._row[:], self._usual
        while mask:
            column = mask.bit_length() - 1
            mixed[column::columns] = other[column::columns]
            mask ^= 1 << column
        return mixed.tobytes()


def _cells(row: bytes) -> array[float]:
    """The row in cells of four bytes, which are moved and never read."""
    cells = array("f")
    cells.frombytes(row)
    return cells


def _occluded(columns: int) -> Iterable[int]:
    """Nothing of the row, all but one column each, everything."""
    everything = (1 << columns) - 1
    return chain([0], (everything ^ 1 << column for column in range(columns)), [everything])


def _run(loaded: LoadedModel, rows: Iterable[bytes], output: int) -> list[float]:
    waiting = iter(rows)
    values: list[float] = []
    while batch := list(islice(waiting, BATCH_COUNT_MAX)):
        values += [answer[output] for answer in loaded.run(batch)]
    return values


def _shapley(values: Sequence[float], columns: int) -> list[float]:
    """The mean, over all orders in which columns can be put in place, of what each column adds."""
    weights = [
        math.factorial(size) * math.factorial(columns - size - 1) / math.factorial(columns) for size in range(columns)
    ]
    return [
        math.fsum(
            weights[mask.bit_count()] * (values[mask | 1 << column] - values[mask])
            for mask in range(len(values))
            if not mask >> column & 1
        )
        for column in range(columns)
    ]
