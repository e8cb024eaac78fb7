"""`stigmergy compile`: compiles the agents of a fleet ahead, so that a device never compiles in flight."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, NAME, Output, counted, printable
from stigmergy.cli.display.places import config_of, fleet_spec, folder_of, load_fleet

if TYPE_CHECKING:
    from stigmergy.compiled.table import CompiledEngine

HOST, GENERIC = "host", "generic"
CACHE_VARIABLE = "STIGMERGY_CACHE"
NUMBA_PROCESSOR = "NUMBA_CPU_NAME"
DESCRIPTION = """\
Compiles all agents of a fleet that are declared with compiled=, and keeps the code.

Without --to it is kept where a start would look for it: in $STIGMERGY_CACHE, or else under ~/.cache/stigmergy. With
--to DIR, copy DIR to the device and start there with STIGMERGY_CACHE=DIR. The folder may be read-only; it must belong
to the user who runs the fleet, or to root, and nobody else may write it, because to load compiled code is to run it.

The code is for one source, one version of Python, numba and numpy, and one processor: on a device where one of these
is another, the start compiles, says so, and goes on. --cpu generic makes code that any processor of this architecture
runs, somewhat slower; it is used where there is none for the very processor.
"""
EXAMPLES = """examples:
  stigmergy compile drone:fleet                             for this machine
  stigmergy compile drone:fleet --to code --cpu generic     for devices of the same architecture
  STIGMERGY_CACHE=code stigmergy run drone:fleet            on the device
"""


def add_commands(commands: Any) -> None:
    """Adds `compile`."""
    parser = commands.add_parser(
        "compile",
        run=run,
        help="compile agents ahead, so that a device need not",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument(
        "--to", metavar="DIR", type=Path, help="where to keep the code; default: where a start looks for it"
    )
    parser.add_argument("--cpu", choices=(HOST, GENERIC), default=HOST, help="for this processor, or for any like it")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Compiles what is not there yet."""
    spec = fleet_spec(arguments, config_of(arguments))
    if arguments.to is not None:
        _choose_folder(arguments.to.absolute())
    _choose_processor(arguments.cpu)
    engines = _engines(load_fleet(spec, folder_of(arguments)))
    if not engines:
        raise ConfigError(f"{spec} has no compiled agents: declare it with compiled=True, or with a list of classes")
    from stigmergy.compiled.builder import cache_folder, processor

    made = [_made(engine, output) for engine in engines]
    system, name, _ = processor()
    output.document({"folder": str(cache_folder()), "system": system, "processor": name, "agents": made})
    output.table(
        ("KIND", "FORMS", "RECORD", "ROW", "SECONDS", "", "WHERE"),
        [
            (
                (one["kind"], NAME),
                str(one["forms"]),
                f"{one['record_bytes']} B",
                f"{one['row_bytes']} B",
                f"{one['seconds']:.2f}",
                ("compiled", GOOD) if one["compiled"] else "was there",
                one["folder"],
            )
            for one in made
        ],
    )
    output.note(f"{counted(len(made), 'kind')} for {name} ({system})")
    return exits.OK


def _choose_folder(folder: Path) -> None:
    """Said before seconds go into compiling."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"--to {folder}: {error.strerror}; give a folder that can be written") from None
    os.environ[CACHE_VARIABLE] = str(folder)


def _choose_processor(which: str) -> None:
    """Read by numba when it is imported, which nobody has done so far."""
    if which != GENERIC:
        return
    if "numba" in sys.modules:
        raise ConfigError(f"--cpu {GENERIC}: numba is imported already; run this as a command of its own")
    os.environ[NUMBA_PROCESSOR] = GENERIC
    os.environ.pop("NUMBA_CPU_FEATURES", None)


def _engines(fleet: Fleet) -> list[CompiledEngine]:
    if all(plan.engine is None for plan in fleet.plans.values()):
        return []
    from stigmergy.compiled.table import CompiledEngine

    return [plan.engine for plan in fleet.plans.values() if isinstance(plan.engine, CompiledEngine)]


def _made(engine: CompiledEngine, output: Output) -> dict[str, Any]:
    engine.prepare(lambda text: output.note(printable(text)))
    built, layout = engine.built, engine.layout
    if built is None or built.folder is None:
        raise ConfigError(
            f"{layout.kind} was compiled, but the code could not be kept; give --to a folder that can be written"
        )
    return {
        "kind": layout.kind,
        "forms": len(layout.forms),
        "record_bytes": layout.record_bytes,
        "row_bytes": layout.row_bytes,
        "seconds": round(built.seconds, 3),
        "compiled": built.compiled,
        "folder": str(built.folder),
    }
