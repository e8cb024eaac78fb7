"""`stigmergy proto`: writes the .proto file of a fleet's gRPC service, and keeps its field numbers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, Output
from stigmergy.cli.display.places import config_of, fleet_spec, folder_of, load_fleet, module_folder

DESCRIPTION = """\
Writes the .proto file of a fleet's gRPC service, from the types of its commands, events and states.

A client reads and writes by field numbers. They are kept in a file beside the fleet's module, NAME.proto.lock: commit
it. A number never changes its meaning; a change of the classes that would break clients is refused, with what to do.
"""
EXAMPLES = """examples:
  stigmergy proto drone:fleet --out fleet.proto
  stigmergy proto drone:fleet --out fleet.proto --check                     in CI: fails if it would write anything
  stigmergy proto drone:fleet --reserve StartMission.priority               this field is gone, its number stays unused
"""


def add_commands(commands: Any) -> None:
    """Adds `proto`."""
    parser = commands.add_parser(
        "proto",
        run=run,
        help="write the .proto file of the fleet's gRPC service",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument("--out", metavar="FILE", type=Path, help="where to write it; default: to stdout")
    parser.add_argument("--numbers", metavar="FILE", type=Path, help="the field numbers; default: beside the module")
    parser.add_argument(
        "--reserve",
        metavar="MESSAGE.FIELD",
        action="append",
        default=[],
        help="give up a field that is gone, and with it the clients that use it; repeatable",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not up to date")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Writes both files, or compares them."""
    try:
        from stigmergy.proto.numbers import describe_changes, read_numbers, write_numbers
        from stigmergy.proto.service import FleetProto, numbers_path
    except ModuleNotFoundError as error:
        raise ConfigError(f'stigmergy proto needs {error.name}: pip install "stigmergy[grpc]"') from None
    spec = fleet_spec(arguments, config_of(arguments))
    fleet = load_fleet(spec, folder_of(arguments))
    path: Path = arguments.numbers or numbers_path(module_folder(spec), fleet.name)
    kept = read_numbers(path, fleet.name)
    service = FleetProto(fleet, kept, arguments.reserve)
    changes = describe_changes(kept, service.numbers)
    written = {path: write_numbers(service.numbers)}
    text = service.text(path.name)
    if arguments.out is not None:
        written[arguments.out] = text.encode()
    stale = [file for file, data in written.items() if not file.is_file() or file.read_bytes() != data]
    output.document(
        {"numbers": str(path), "proto": str(arguments.out or ""), "changes": changes, "stale": list(map(str, stale))}
    )
    if not arguments.check:
        for file in stale:
            _write(file, written[file])
    for change in changes:
        output.note(change)
    for file in written:
        word = (
            ("up to date", GOOD)
            if file not in stale
            else ("out of date", BAD)
            if arguments.check
            else ("written", GOOD)
        )
        output.note(f"{file}: {word[0]}", word[1])
    if arguments.out is None and not arguments.check and not output.json:
        sys.stdout.write(text)
    return exits.REFUSED if arguments.check and stale else exits.OK


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
