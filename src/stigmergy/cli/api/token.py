"""`stigmergy token`: makes, lists and revokes the tokens of the HTTP API."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stigmergy.app.fleet import journal_path
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, Output
from stigmergy.cli.display.places import add_place, config_of, find_journal, fleet_spec, folder_of, load_fleet
from stigmergy.serve.tokens import Token, Tokens, tokens_path

EXPIRES = re.compile(r"(?P<number>[1-9]\d{0,4})(?P<unit>[mhdy])")
UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "y": 365 * 86_400}
TOKEN_EXAMPLES = """examples:
  stigmergy token create --scope read --scope command:Drone --expires 30d ground-station
  stigmergy token create --tokens stigmergy-cluster/fleet.tokens --scope read screen    for `stigmergy up --serve`
  stigmergy token list
  stigmergy token revoke ground-station      counts from the next request on
"""


def add_commands(commands: Any) -> None:
    """Adds `token`."""
    parser = commands.add_parser(
        "token",
        run=token,
        help="make, list and revoke the tokens of the HTTP API",
        description="Makes, lists and revokes tokens. They are kept beside the journal, as hashes only.",
        epilog=TOKEN_EXAMPLES,
    )
    parser.add_argument("action", choices=("create", "list", "revoke"))
    parser.add_argument("name", metavar="NAME", nargs="?", help="the name of the token")
    parser.add_argument(
        "--scope",
        metavar="SCOPE",
        action="append",
        default=[],
        help="what it allows: read, observe, command:KIND, command:*, operate; repeatable",
    )
    parser.add_argument("--expires", metavar="TIME", default="30d", help="how long it counts: 12h, 30d, 1y (30d)")
    parser.add_argument("--tokens", metavar="FILE", type=Path, help="the token file; else beside the journal")
    add_place(parser, nats=True)


def token(arguments: argparse.Namespace, output: Output) -> int:
    """Makes, lists or revokes tokens."""
    tokens = Tokens(_token_file(arguments))
    if arguments.action == "list":
        if arguments.name is not None:
            raise ConfigError("list shows all tokens; leave the name out")
        return _list(tokens, output)
    if arguments.name is None:
        raise ConfigError(f"which token? stigmergy token {arguments.action} NAME")
    if arguments.action == "revoke":
        revoked = tokens.revoke(arguments.name, time.time())
        output.document(_described(revoked))
        output.line(("revoked", GOOD), "  ", (revoked.name, NAME))
        return exits.OK
    expires = EXPIRES.fullmatch(arguments.expires)
    if expires is None:
        raise ConfigError(f"--expires {arguments.expires}: give a number and m, h, d or y, such as 30d")
    _check_kinds(arguments, output)
    for_s = int(expires["number"]) * UNITS_S[expires["unit"]]
    text = tokens.create(arguments.name, tuple(dict.fromkeys(arguments.scope)), for_s, time.time())
    made = next(one for one in tokens.all() if one.name == arguments.name)
    output.document({**_described(made), "token": text})
    output.line(text)
    output.note(f"keep it: it is not stored, and cannot be shown again. Its hash is in {tokens.path}")
    return exits.OK


def _check_kinds(arguments: argparse.Namespace, output: Output) -> None:
    """A kind that is misspelt would be noticed only when a command is refused."""
    kinds = [scope.partition(":")[2] for scope in arguments.scope if scope.startswith("command:")]
    named = [kind for kind in kinds if kind != "*"]
    spec = arguments.fleet or config_of(arguments).fleet.module
    if not named:
        return
    if spec is None:
        output.note(f"whether the fleet has {', '.join(named)} was not checked: --fleet MODULE:FLEET does")
    else:
        plans = load_fleet(spec, folder_of(arguments)).plans
        if unknown := [kind for kind in named if kind not in plans]:
            raise ConfigError(f"--scope command:{unknown[0]}: the fleet has no such kind; it has {', '.join(plans)}")


def _list(tokens: Tokens, output: Output) -> int:
    rows = []
    for one in tokens.all():
        output.document(_described(one))
        state = _state(one)
        rows.append(
            ((one.name, NAME), " ".join(one.scopes), _time(one.expires_s), (state, GOOD if state == "valid" else BAD))
        )
    output.table(("NAME", "SCOPES", "EXPIRES", "") if rows else (), rows)
    if not rows:
        output.note(f"no tokens in {tokens.path}: only programs on the same machine are let in")
    return exits.OK


def _token_file(arguments: argparse.Namespace) -> Path:
    if arguments.tokens is not None:
        return Path(arguments.tokens)
    if arguments.nats is not None:
        fleet = load_fleet(fleet_spec(arguments, config_of(arguments)), folder_of(arguments))
        return tokens_path(None, fleet.name)
    if arguments.socket is not None:
        return tokens_path(Path(str(arguments.socket).removesuffix(".sock")), "")
    return tokens_path(journal_path(find_journal(arguments)), "fleet")


def _described(one: Token) -> dict[str, Any]:
    return {
        "name": one.name,
        "scopes": one.scopes,
        "created": _time(one.created_s),
        "expires": _time(one.expires_s),
        "state": _state(one),
    }


def _state(one: Token) -> str:
    if one.revoked_s is not None:
        return "revoked"
    return "valid" if one.is_valid(time.time()) else "expired"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
