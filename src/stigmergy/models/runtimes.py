"""Finds runtimes by name: our own, and those of other packages by the entry point group `stigmergy.model_runtimes`.

An entry point's name is what manifests call the runtime; its value is a function without arguments that makes one.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from stigmergy.base.errors import ModelRefused
from stigmergy.models.runtime import ModelRuntime

GROUP: Final = "stigmergy.model_runtimes"
OURS: Final = {"forest": "stigmergy.models.forest", "onnx": "stigmergy.models.onnx_runtime"}
"""By module: one that nobody asks for is not imported."""


def find_runtime(name: str) -> ModelRuntime:
    """The runtime of that name. Raises ModelRefused if there is none, or its package is missing."""
    try:
        made: Any = _maker(name)()
    except ModuleNotFoundError as error:
        raise ModelRefused(
            f'runtime {name!a} needs the package {error.name!r}, which is missing; pip install "stigmergy[{name}]"'
        ) from None
    runtime: ModelRuntime = made
    return runtime


def _maker(name: str) -> Any:
    if name in OURS:
        return import_module(OURS[name]).make_runtime
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({**OURS, **found}))
        raise ModelRefused(
            f"no runtime {name!a} here, there are {known}; install its package, or pack for one of these"
        )
    return found[name].load()
