"""`stigmergy ledger`: entries of a ledger of the fleet's own; and a ledger on NATS, and who may write."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec

from stigmergy.app.fleet import NodeConfig, find_node_config, fingerprint, load_signer, read_key
from stigmergy.app.ledgers import LedgerLook, change_writers, look_at_ledger
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, Output, counted, shown
from stigmergy.cli.display.places import add_place, ask, config_of, find_place, fleet_name
from stigmergy.control.protocol import LedgerRequest

EXAMPLES = """examples:
  stigmergy ledger incidents --follow                   the entries of a ledger of the fleet's own, from a running node
  stigmergy ledger incidents --nats nats://hub:4222 --fleet city:fleet --json
  stigmergy ledger show --name delivery --ledger nats://hub:4222
  stigmergy ledger enrol gateway-4.pub --with gateway-1.key --name delivery --ledger nats://hub:4222
  stigmergy ledger revoke gateway-2.pub --with gateway-1.key --name delivery --ledger nats://hub:4222
"""
ENTRIES = "entries"
ACTIONS = (ENTRIES, "show", "enrol", "revoke")
FOLLOW_S = 0.5


def add_commands(commands: Any) -> None:
    """Adds `ledger` and what is under it."""
    group = commands.add_parser(
        "ledger",
        help="the entries of a ledger; show one on NATS, and change who may write to it",
        description="Shows entries of a ledger of the fleet's own. Reads and verifies a ledger on NATS, and says and "
        "changes who may write to it.",
        epilog=EXAMPLES,
    )
    actions = group.add_subparsers(metavar="ACTION", required=True)
    parser = actions.add_parser(ENTRIES, run=entries, help="the entries of a ledger of the fleet's own")
    parser.add_argument("ledger", metavar="LEDGER", help="which, such as incidents; `ledger incidents` is short for it")
    parser.add_argument("--after", metavar="POSITION", type=int, help="those behind this position; else the last ones")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="so many at most (100)")
    parser.add_argument("--fresh", action="store_true", help="what a majority of its servers knows at this moment")
    parser.add_argument("--follow", action="store_true", help="go on with what is entered from now on")
    add_place(parser, nats=True)
    parser = actions.add_parser("show", run=show, help="read and verify it, and say who may write")
    _add_place(parser)
    for name, what, run in (
        ("enrol", "let another key write", enrol),
        ("revoke", "let a key write no more", revoke),
    ):
        parser = actions.add_parser(name, run=run, help=what)
        parser.add_argument("key", metavar="KEY", help="its file, public line or hex digits")
        parser.add_argument(
            "--with", dest="signing", metavar="FILE", type=Path, required=True, help="a private key that may write"
        )
        _add_place(parser)


def with_action(given: list[str]) -> list[str]:
    """`ledger incidents` as `ledger entries incidents`."""
    if given[:1] != ["ledger"] or len(given) < 2 or given[1].startswith("-") or given[1] in ACTIONS:
        return given
    return ["ledger", ENTRIES, *given[1:]]


def entries(arguments: argparse.Namespace, output: Output) -> int:
    """Shows entries, and those that are entered meanwhile."""
    place, after, latest = find_place(arguments), arguments.after or 0, arguments.after is None
    while True:
        request = LedgerRequest(
            ledger=arguments.ledger, after=after, limit=arguments.limit, latest=latest, fresh=arguments.fresh
        )
        found = ask(place, request)
        after, latest = found.entries[-1].position if found.entries else max(after, found.position), False
        if not arguments.follow:
            output.document(found)
        for one in found.entries:
            if arguments.follow:
                output.document(one)
            fields = ", ".join(f"{name}={shown(value)}" for name, value in one.entry.items())
            output.line((f"{one.position:>8,}", NAME), f"  {fields}  by {one.proposer}")
        if not arguments.follow:
            return exits.OK
        if len(found.entries) < arguments.limit:
            time.sleep(FOLLOW_S)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="whose; only its name is needed")
    parser.add_argument("--name", metavar="FLEET", help="the fleet's name, if its module is not available")
    parser.add_argument(
        "--ledger", metavar="URL", help="such as nats://hub:4222?replicas=3; else that of stigmergy.toml"
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Says what is in a ledger."""
    url, name = _place(arguments)
    _print(asyncio.run(look_at_ledger(url, name)), output)
    return exits.OK


def enrol(arguments: argparse.Namespace, output: Output) -> int:
    """Lets a key write."""
    url, name = _place(arguments)
    key, signer = read_key(arguments.key), load_signer(arguments.signing, create=False)
    _print(asyncio.run(change_writers(url, name, signer, enrolled=[key.key])), output)
    output.line(("enrolled", GOOD), f"  {fingerprint(key)} may write from here on")
    return exits.OK


def revoke(arguments: argparse.Namespace, output: Output) -> int:
    """Takes a key the right to write."""
    url, name = _place(arguments)
    key, signer = read_key(arguments.key), load_signer(arguments.signing, create=False)
    look = asyncio.run(change_writers(url, name, signer, revoked=[key.key]))
    _print(look, output)
    if key.key.hex() in look.writers:
        output.line(("not revoked", BAD), "  it is the only one that may write; enrol another one first")
        return exits.REFUSED
    output.line(("revoked", GOOD), f"  {fingerprint(key)} may write no more; what it has written stays")
    return exits.OK


def _place(arguments: argparse.Namespace) -> tuple[str, str]:
    config = config_of(arguments)
    url = find_node_config(NodeConfig(ledger=arguments.ledger), config).ledger
    if url is None:
        raise ConfigError("which ledger? Give --ledger URL, such as nats://hub:4222?replicas=3")
    missing = "the ledger of which fleet? Give MODULE:FLEET, or its name with --name"
    return url, fleet_name(arguments, config, missing)


def _print(look: LedgerLook, output: Output) -> None:
    output.document(msgspec.to_builtins(look))
    kept = f", kept from {look.first:,} on" if look.first > 1 else ""
    output.line((look.ledger, NAME), f"  {counted(look.entries, 'entry', 'entries')}{kept}; {look.place}")
    output.line(f"  head {look.head} behind {counted(look.messages, 'message')}")
    output.line(f"  checkpoint at {look.checkpoint:,}" if look.checkpoint else "  no checkpoint")
    for key in look.writers:
        output.line(f"  may write: {key}")
    if ignored := {why: count for why, count in look.passed_over.items() if count}:
        output.line("  passed over: " + ", ".join(f"{count:,} {why}" for why, count in ignored.items()))
