"""Example inputs for a model, with answers that are known to be right where there are some: CSV with a header, or npz.

A CSV file has a column for each input by its name (`co`, or `co[0]` where a row is several steps); columns called as
outputs are the right answers. An npz file has the array `inputs`, and `outputs` if the right answers are known.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from stigmergy.base.errors import ModelRefused
from stigmergy.models.bundle import Manifest
from stigmergy.models.runtime import pack_row

ROWS_READ_MAX: Final = 100_000


class Examples(Struct, frozen=True):
    """Rows, and what their right answers are."""

    rows: list[bytes]
    labels: list[tuple[float, ...]]
    """One for each row, or none at all."""


def read_examples(path: Path, manifest: Manifest) -> Examples:
    """Reads such a file, at most ROWS_READ_MAX rows of it. Raises ModelRefused."""
    try:
        found = _read_npz(path, manifest) if path.suffix == ".npz" else _read_csv(path, manifest)
    except (OSError, ValueError, csv.Error, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise ModelRefused(f"examples {str(path)!a} cannot be read: {error}") from None
    if not found.rows:
        raise ModelRefused(f"examples {str(path)!a}: there are none in it; give a file with one row or more")
    return found


def spread(count: int, of: int) -> list[int]:
    """So many indices, evenly over a file; all of them if there are no more."""
    return [index * of // count for index in range(count)] if count < of else list(range(of))


def area_under_curve(labels: Sequence[float], scores: Sequence[float]) -> float | None:
    """How often a positive example has the higher score, ties counted half; None unless labels are zeros and ones."""
    positives = sum(label == 1 for label in labels)
    negatives = len(labels) - positives
    if not positives or not negatives or any(label not in (0, 1) for label in labels):
        return None
    order = sorted(range(len(scores)), key=scores.__getitem__)
    ranks, start = 0.0, 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        # All that are equal share the mean of their ranks.
        ranks += (start + 1 + end) / 2 * sum(labels[index] == 1 for index in order[start:end])
        start = end
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def _read_csv(path: Path, manifest: Manifest) -> Examples:
    names = manifest.input_names()
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in names if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"it has no column {missing[0]!a}; its first line must name each input")
        labelled = all(output in (reader.fieldnames or ()) and output not in names for output in manifest.outputs)
        rows: list[bytes] = []
        labels: list[tuple[float, ...]] = []
        for line, _ in zip(reader, range(ROWS_READ_MAX), strict=False):
            rows.append(pack_row([float(line[name] or "nan") for name in names]))
            if labelled:
                labels.append(tuple(float(line[name] or "nan") for name in manifest.outputs))
    return Examples(rows, labels)


def _read_npz(path: Path, manifest: Manifest) -> Examples:
    import numpy

    with numpy.load(path, allow_pickle=False) as arrays:
        if "inputs" not in arrays:
            raise ValueError("it has no array 'inputs'")
        inputs = numpy.asarray(arrays["inputs"][:ROWS_READ_MAX], dtype="<f4")
        inputs = inputs.reshape(len(inputs), -1)
        if inputs.shape[1] != manifest.row_count:
            raise ValueError(f"its rows have {inputs.shape[1]} numbers, the model takes {manifest.row_count}")
        outputs = arrays["outputs"][: len(inputs)].reshape(len(inputs), -1) if "outputs" in arrays else None
    labels = [] if outputs is None else [tuple(map(float, row)) for row in outputs.tolist()]
    if labels and len(labels[0]) != len(manifest.outputs):
        raise ValueError(f"its outputs have {len(labels[0])} numbers, the model gives {len(manifest.outputs)}")
    return Examples([row.tobytes() for row in inputs], labels)
