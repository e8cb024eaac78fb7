"""Which version this is, as the installed package says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


def version() -> str:
    """The version of the installed package."""
    try:
        return installed_version("stigmergy")
    except PackageNotFoundError:
        return "unknown"
