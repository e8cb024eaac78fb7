"""`stigmergy doctor`: checks the machine and the journal for problems, and says what to do.

It changes nothing except a small test file beside the journal, which it removes. It shows no secret.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stigmergy.app.config import Config
from stigmergy.app.fleet import NodeConfig, default_key_path, find_node_config, journal_path
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, HEADING, Cell, Output
from stigmergy.cli.display.output import WARN as YELLOW
from stigmergy.cli.display.places import add_place, config_of, find_journal, folder_of
from stigmergy.cli.machine_checks import FAIL, LEVELS, OK, WARN, Finding, ill
from stigmergy.node.settings import Settings

STYLES = {OK: GOOD, WARN: YELLOW, FAIL: BAD}
EXAMPLES = """examples:
  stigmergy doctor                    this folder, and what stigmergy.toml says
  stigmergy doctor --journal north.db
  stigmergy doctor --json             for a program; the exit code is 1 if something fails
  stigmergy doctor --strict           also if something is only worth a warning
"""


def add_commands(commands: Any) -> None:
    """Adds `doctor`."""
    parser = commands.add_parser(
        "doctor",
        run=run,
        help="check disk, clock, versions, keys, ports, journal",
        description="Checks the machine and the journal, and says how to fix problems.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--strict", action="store_true", help="fail on warnings too")
    parser.add_argument("--key", metavar="FILE", type=Path, help="the key that the node signs with; else the journal's")
    add_place(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Looks at everything, and tells it as it goes."""
    found: list[Finding] = []
    for finding in _findings(arguments):
        found.append(finding)
        _show(finding, output)
    worst = max((LEVELS.index(one.level) for one in found), default=0)
    failed = LEVELS[worst] == FAIL or (arguments.strict and LEVELS[worst] == WARN)
    counts = {level: sum(1 for one in found if one.level == level) for level in LEVELS}
    output.document(
        {
            "ok": not failed,
            "worst": LEVELS[worst],
            "counts": counts,
            "checks": [msgspec.to_builtins(finding) for finding in found],
        }
    )
    if not output.json:
        output.note(f"{counts[OK]} ok, {counts[WARN]} to know, {counts[FAIL]} to mend")
    return exits.REFUSED if failed else exits.OK


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    """All checks, in order; imported here, because no other command should wait for what they need."""
    from stigmergy.cli.fleet_checks import (
        check_archive,
        check_bus,
        check_clusters,
        check_copies,
        check_journal,
        check_needs,
        check_replication,
        fleet_of,
    )
    from stigmergy.cli.machine_checks import check_clocks, check_disk, check_limits, check_versions
    from stigmergy.cli.trust.checks import check_identity_folder

    try:
        config = config_of(arguments)
    except ConfigError as error:
        yield ill("config", str(error), "fix it; see docs/configuration.md")
        config = Config()
    settings = config.settings or Settings()
    try:
        url = find_journal(arguments)
    except ConfigError:
        url = None
    yield from check_versions()
    yield from check_clocks()
    yield from check_limits()
    path = None if url is None else journal_path(url)
    folder = Path.cwd() if path is None else path.parent
    yield from check_disk(folder, settings.retention.reserve_bytes, settings.write_within_s)
    if settings.retention.archive is not None:
        yield check_archive(settings.retention.archive)
    if spec := getattr(arguments, "fleet", None) or config.fleet.module:
        yield from check_needs(config.fleet, spec, folder_of(arguments))
    beside = None if path is None or url is None else default_key_path("", url)
    key = arguments.key or (Path(config.fleet.key) if config.fleet.key else beside)
    yield from check_identity_folder(config.fleet.identity, key, time.time())
    yield from check_bus(config.fleet.bus)
    yield from check_clusters((config.fleet.bus, config.fleet.ledger, url))
    yield from check_replication(config.fleet, url)
    node_config = find_node_config(NodeConfig(), config)
    if node_config.copies:
        node = f"{node_config.site}/{node_config.node}"
        yield from check_copies(node_config.copies, fleet_of(url), node, time.time_ns())
    if url is not None:
        yield from check_journal(url, key, time.time_ns())


def _show(finding: Finding, output: Output) -> None:
    cells: list[Cell] = [
        (f"{finding.level:<5}", STYLES[finding.level]),
        (f"{finding.check:<20} ", HEADING),
        finding.what,
    ]
    output.line(*cells)
    if finding.remedy:
        output.line(f"{'':26}→ {finding.remedy}")
