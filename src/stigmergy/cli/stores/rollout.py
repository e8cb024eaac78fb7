"""`stigmergy model rollout`: begins, shows, promotes, rolls back and pauses rollouts of models.

A rollout is an agent, `ModelRollout/NAME`: this sends it commands, and shows its state.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from stigmergy.app.models import publish_bundle
from stigmergy.app.parts import shown_url
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError, ModelRefused
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, WARN, Cell, Output
from stigmergy.cli.display.places import add_place, ask, config_of, find_place, fleet_name
from stigmergy.control.protocol import AgentsRequest, SendRequest
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.bundle import Bundle, inspect_bundle, is_signed
from stigmergy.models.rollout import RolloutRule, VersionCounts, total
from stigmergy.models.rollout_agent import KIND

EXAMPLES = """examples:
  stigmergy model rollout begin gas-alarm 1.3.0 --from 1.2.0 --bundle gas-alarm-1.3.0.model --rule canary=0.1
  stigmergy model rollout status
  stigmergy model rollout promote gas-alarm --by ann
  stigmergy model rollout rollback gas-alarm --by ann --reason "alarms at night"
"""
STYLES = {"shadow": WARN, "canary": WARN, "promoted": GOOD, "rolled back": BAD}


def add_rollout(actions: Any) -> None:
    """Adds `rollout` and what it can do."""
    group = actions.add_parser(
        "rollout",
        help="give a new version of a model to more and more agents, or take it back",
        description="Rolls a version of a model out: in the shadow, to a canary, to everybody; by rule, or by hand.",
        epilog=EXAMPLES,
    )
    under = group.add_subparsers(metavar="ACTION", required=True)
    parser = under.add_parser("begin", run=begin, help="begin with a new version")
    parser.add_argument("model", metavar="NAME")
    parser.add_argument("version", metavar="X.Y.Z")
    parser.add_argument("--from", dest="stable", metavar="X.Y.Z", default="", help="what runs now; once")
    parser.set_defaults(name=None)
    parser.add_argument("--bundle", metavar="FILE", type=Path, help="put it where the fleet's models are, once begun")
    parser.add_argument("--models", metavar="URL", help="where that is, if stigmergy.toml does not say so")
    parser.add_argument("--rule", metavar="FIELD=VALUE", action="append", default=[], help="such as canary=0.1")
    add_place(parser, nats=True)
    parser = under.add_parser("status", run=status, help="show all rollouts, or one")
    parser.add_argument("model", metavar="NAME", nargs="?")
    add_place(parser, nats=True)
    for name, command, what in (
        ("promote", "PromoteModel", "give the new version to everybody now"),
        ("rollback", "RollBackModel", "take the new version back now"),
        ("pause", "PauseRollout", "leave everything as it is; the rule decides nothing"),
        ("resume", "ResumeRollout", "let the rule decide again"),
    ):
        parser = under.add_parser(name, run=order, help=what)
        parser.set_defaults(command=command)
        parser.add_argument("model", metavar="NAME")
        parser.add_argument("--by", metavar="WHO", default="", help="your name, for the log")
        if name == "rollback":
            parser.add_argument("--reason", metavar="TEXT", default="")
        add_place(parser, nats=True)


def add_put(parser: argparse.ArgumentParser) -> None:
    """The arguments of `put`."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument(
        "--models", metavar="URL", help="where to, such as nats://hub:4222; else as stigmergy.toml says"
    )
    parser.add_argument("--fleet", metavar="MODULE:FLEET", help="whose models these are")
    parser.add_argument("--name", metavar="FLEET", help="the fleet's name, if its module is not available")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")


def put(arguments: argparse.Namespace, output: Output) -> int:
    """Puts a bundle where a fleet's models are: the first version needs no rollout."""
    bundle = inspect_bundle(data := _read(arguments.bundle))
    if not is_signed(data, Ed25519Verifier()):
        raise ModelRefused(f"{arguments.bundle}: nobody has signed it, no node would take it; pack it with --key")
    url = _publish(arguments, bundle, data)
    manifest = bundle.manifest
    output.document({"file": bundle.file_name, "name": manifest.name, "version": manifest.version, "models": url})
    output.line(("put", GOOD), f"  {bundle.file_name} into {url}; nodes fetch it by themselves")
    return exits.OK


def _publish(arguments: argparse.Namespace, bundle: Bundle, data: bytes) -> str:
    """Puts a bundle under the name that nodes look for; where to, as it may be shown."""
    config = config_of(arguments)
    url: str | None = arguments.models or config.fleet.models
    if url is None:
        raise ConfigError("where do the fleet's models lie? Give --models URL")
    missing = "models of which fleet? Give --fleet MODULE:FLEET, or write it in stigmergy.toml"
    name = fleet_name(arguments, config, missing)
    asyncio.run(publish_bundle(url, name, bundle.file_name, data))
    return shown_url(url)


def begin(arguments: argparse.Namespace, output: Output) -> int:
    """Begins a rollout, and then puts the bundle where nodes find it."""
    bundle, data = None, b""
    if arguments.bundle is not None:
        bundle = inspect_bundle(data := _read(arguments.bundle))
        manifest = bundle.manifest
        if (manifest.name, manifest.version) != (arguments.model, arguments.version):
            raise ConfigError(
                f"{arguments.bundle} is {manifest.name} {manifest.version}, not {arguments.model} {arguments.version}"
            )
    rule = msgspec.to_builtins(read_rule(arguments.rule))
    fields = {"version": arguments.version, "stable": arguments.stable, "rule": rule}
    code = _send(arguments, "BeginRollout", fields, output)
    if code == exits.OK and bundle is not None:
        _publish(arguments, bundle, data)
        output.note(f"{bundle.file_name} is there now; nodes fetch it by themselves")
    return code


def order(arguments: argparse.Namespace, output: Output) -> int:
    """Promotes, rolls back, pauses or resumes."""
    fields = {"by": arguments.by} | ({"reason": arguments.reason} if hasattr(arguments, "reason") else {})
    return _send(arguments, arguments.command, fields, output)


def status(arguments: argparse.Namespace, output: Output) -> int:
    """Shows where rollouts stand."""
    found = ask(find_place(arguments), AgentsRequest(kind=KIND, limit=1_000))
    states = [one.state for one in found.agents if arguments.model in (None, one.state["id"])]
    rows: list[list[Cell]] = []
    for state in states:
        stable, candidate = (_counted(state, name) for name in ("stable", "candidate"))
        answers = f"{candidate.asks:,}, {candidate.wrong} of {candidate.judged} wrong"
        output.document(state | {"counts": {"stable": stable, "candidate": candidate}})
        stage = f"{state['stage']}{' (paused)' * state['paused']}"
        row: list[Cell] = [(state["id"], NAME), state["stable"], state["candidate"] or "-"]
        rows.append([*row, (stage, STYLES.get(state["stage"], "")), answers, state["reason"]])
    output.table(("MODEL", "STABLE", "NEW", "STAGE", "ANSWERS OF THE NEW ONE", "WHY") if rows else (), rows)
    if not rows:
        output.note("no rollouts" if arguments.model is None else f"no rollout of {arguments.model} was ever begun")
    return exits.OK if rows or arguments.model is None else exits.REFUSED


def read_rule(texts: list[str]) -> RolloutRule:
    """The rule with these fields. Raises ConfigError."""
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            given[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            equals = ""
        if not equals or name not in RolloutRule.__struct_fields__:
            fields = ", ".join(RolloutRule.__struct_fields__)
            raise ConfigError(f"--rule {text!r}: write FIELD=NUMBER; the fields are {fields}")
    return RolloutRule(**given)


def _counted(state: dict[str, Any], name: str) -> VersionCounts:
    counts = [*state[f"{name}s"].values(), state[f"{name}_judged"]]
    return total(msgspec.convert(one, VersionCounts) for one in counts)


def _send(arguments: argparse.Namespace, command: str, fields: dict[str, Any], output: Output) -> int:
    command_id = new_command_id(time.time_ns(), secrets.token_bytes(RANDOM_BYTES))
    agent = f"{KIND}/{arguments.model}"
    request = SendRequest(agent=agent, command=command, fields=fields, command_id=command_id)
    answer = ask(find_place(arguments), request, doubt="look with: stigmergy model rollout status")
    output.document({"model": arguments.model, "command": command, **msgspec.to_builtins(answer)})
    if not answer.accepted:
        output.line(("refused", BAD), f"  {answer.reason}")
        return exits.REFUSED
    output.line(("accepted", GOOD), f"  {agent} at position {answer.position}")
    return exits.OK


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a bundle") from None
