"""The program `stigmergy`, up to the moment at which it needs the runtime.

`stigmergy --version` is asked by scripts and packagers, also on small devices, and must not load everything for it. So
this is no part of the package `stigmergy`, which loads the runtime when it is imported.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Runs what the command line says; returns the exit code."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"stigmergy {version('stigmergy')}")
        return 0
    from stigmergy.cli.main import main as run

    return run()
