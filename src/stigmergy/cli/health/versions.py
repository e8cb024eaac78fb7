"""What is installed: Python, SQLite, the libraries, and whether they are the versions that we need."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from stigmergy.cli.health.finding import Finding, ill, well, worry

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 53)
"""What we require: older ones can corrupt a database when the write-ahead log is reset."""
_NEEDED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*>=\s*(?P<version>[0-9.]+)")


def check_versions() -> Iterator[Finding]:
    """Everything that runs here."""
    python = platform.python_version()
    if sys.version_info[:2] < PYTHON_MIN:
        yield ill("versions.python", f"Python {python}", "use Python 3.11 or newer", version=python)
    else:
        yield well("versions.python", f"Python {python} on {platform.system()} {platform.machine()}", version=python)
    if sys.maxsize < 2**32 or platform.system() != "Linux":
        yield worry("versions.platform", f"{platform.system()} {platform.machine()} is not tested", "use 64-bit Linux")
    yield _check_sqlite()
    yield from check_libraries(requires("stigmergy") or [])


def _check_sqlite() -> Finding:
    try:
        library = importlib.import_module("apsw").sqlitelibversion()
    except ImportError as error:
        return ill("versions.sqlite", f"apsw cannot be loaded: {error}", "install stigmergy again")
    if _numbers(library) < SQLITE_MIN:
        what = f"SQLite {library} can corrupt a journal when its write-ahead log is reset"
        return ill("versions.sqlite", what, "install a newer apsw", version=library)
    return well("versions.sqlite", f"SQLite {library}", version=library)


def check_libraries(needed: list[str]) -> Iterator[Finding]:
    """Compares what is installed with what our package says it needs; extras are left out."""
    fine: dict[str, str] = {}
    for line in needed:
        found = _NEEDED.match(line)
        if found is None or "extra ==" in line:
            continue
        name, least = found["name"], found["version"]
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield ill(f"versions.{name}", f"{name} is not installed", f"pip install '{name}>={least}'")
            continue
        if _numbers(installed) < _numbers(least):
            what = f"{name} {installed}, {least} or newer is needed"
            yield ill(f"versions.{name}", what, f"pip install '{name}>={least}'", version=installed)
        else:
            fine[name] = installed
    if fine:
        listed = ", ".join(f"{name} {installed}" for name, installed in sorted(fine.items()))
        yield well("versions.libraries", listed, **fine)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])
