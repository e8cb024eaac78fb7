"""`stigmergy policy`: tries, signs, shows and distributes policies in Rego."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from stigmergy.app.fleet import PublicKey, fingerprint, load_signer
from stigmergy.app.parts import shown_url
from stigmergy.app.policy import publish_policy
from stigmergy.base.errors import ConfigError, PolicyRefused
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, Output
from stigmergy.cli.display.places import config_of
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.policy.bundle import SUFFIX, PolicyBundle, PolicyRules, inspect_policy, write_policy
from stigmergy.policy.cases import read_cases, read_sources, run_cases
from stigmergy.policy.place import read_bounded
from stigmergy.policy.rego import RegoPolicy
from stigmergy.shard.commit import SignatureAlgorithm

EXAMPLES = """examples:
  stigmergy policy test policy                     the rules in policy/*.rego, with policy/cases.json
  stigmergy policy sign policy --name delivery --version 3 --key ops.key
  stigmergy policy show delivery-3.policy
  stigmergy policy put delivery-3.policy --policy nats://hub:4222
"""


def add_commands(commands: Any) -> None:
    """Adds `policy` and what is under it."""
    group = commands.add_parser(
        "policy",
        help="try, sign, show and distribute the policy that commands pass",
        description="Rules in Rego decide which commands agents get to see. Makes of them a bundle that nodes take.",
        epilog=EXAMPLES,
    )
    actions = group.add_subparsers(metavar="ACTION", required=True)
    parser = actions.add_parser("test", run=try_cases, help="try a policy with its cases; exit code 1 if one fails")
    parser.add_argument("file", metavar="FILE", type=Path, help="a folder, a .rego file, or a bundle")
    parser = actions.add_parser("sign", run=sign, help="make a signed bundle, once its cases go well")
    parser.add_argument("file", metavar="FILE", type=Path, help="a folder, or a .rego file")
    parser.add_argument("--name", metavar="FLEET", required=True, help="the name of the fleet that it is for")
    parser.add_argument("--version", metavar="N", type=int, required=True, help="higher than any before")
    parser.add_argument("--key", metavar="KEYFILE", type=Path, required=True, help="the private key that signs it")
    parser.add_argument("--note", metavar="TEXT", default="", help="what is new")
    parser.add_argument("--out", metavar="OUTFILE", type=Path, help="else FLEET-N.policy here")
    parser = actions.add_parser("show", run=show, help="show what a bundle says, and who has signed it")
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser = actions.add_parser("put", run=put, help="put a bundle where a fleet's policy is")
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument("--policy", metavar="URL", help="where to, as folder:policy; else as stigmergy.toml says")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")


def try_cases(arguments: argparse.Namespace, output: Output) -> int:
    """Says which cases go wrong."""
    return exits.OK if _try(arguments.file, output) else exits.REFUSED


def _try(path: Path, output: Output) -> bool:
    if path.suffix == SUFFIX:
        policy = _read(path).policy
        modules, data, fleet = policy.modules, policy.data, policy.fleet
    else:
        (modules, data), fleet = read_sources(path), ""
    found = run_cases(RegoPolicy(modules, data), read_cases(path), fleet)
    wrong = [one for one in found if one.wrong]
    output.document(
        {
            "ok": not wrong,
            "cases": [{"name": one.name, "wrong": one.wrong, "took_ms": one.took_s * 1000} for one in found],
        }
    )
    for one in wrong:
        output.line(("wrong", BAD), f"  {one.name}: {one.wrong}")
    if not wrong:
        output.line(("well", GOOD), f"  {len(found)} cases")
    return not wrong


def sign(arguments: argparse.Namespace, output: Output) -> int:
    """Makes a bundle."""
    signer = load_signer(arguments.key, create=False)
    modules, data = read_sources(arguments.file)
    wrong = [one for one in run_cases(RegoPolicy(modules, data), read_cases(arguments.file)) if one.wrong]
    if wrong:
        raise PolicyRefused(f"not signed: the case {wrong[0].name!r} fails ({wrong[0].wrong}); mend the policy")
    policy = PolicyRules(arguments.name, arguments.version, modules, data, arguments.note)
    bundle_data = write_policy(policy, signer)
    bundle = inspect_policy(bundle_data, Ed25519Verifier())
    path = arguments.out or Path(bundle.file_name)
    try:
        with path.open("xb") as file:
            file.write(bundle_data)
    except FileExistsError:
        raise ConfigError(f"{str(path)!a} exists; a bundle is never replaced: give a new version") from None
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!a}: {error.strerror}") from None
    output.document({"file": str(path), **_described(bundle)})
    output.line(("signed", GOOD), f" {path}  ", (f"{arguments.name} {arguments.version}", NAME))
    return exits.OK


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Shows what a bundle says."""
    bundle = _read(arguments.bundle)
    policy = bundle.policy
    modules = dict(policy.modules)
    output.document({**_described(bundle), "modules": modules, "data": policy.data, "note": policy.note})
    by = fingerprint(PublicKey(SignatureAlgorithm.ED25519, bundle.signer)) if bundle.signer else "nobody"
    output.line((f"{policy.fleet} {policy.version}", NAME), f"  {policy.note}")
    output.fields(
        [
            ("signed by", by if bundle.signer else (by, BAD)),
            ("digest", bundle.digest.hex()),
            ("modules", ", ".join(modules)),
            ("data", f"{len(policy.data)} characters"),
        ]
    )
    for name, text in modules.items():
        output.line((f"# {name}", NAME))
        output.line(text)
    return exits.OK


def put(arguments: argparse.Namespace, output: Output) -> int:
    """Puts a bundle where nodes look for it."""
    bundle = _read(arguments.bundle)
    if not bundle.signer:
        raise PolicyRefused(f"{arguments.bundle}: its signature is missing or wrong, no node would take it; sign it")
    url: str | None = arguments.policy or config_of(arguments).fleet.policy
    if url is None:
        raise ConfigError("where is the fleet's policy? Give --policy URL, or write it in stigmergy.toml")
    data = read_bounded(arguments.bundle)
    asyncio.run(publish_policy(url, bundle.policy.fleet, bundle.file_name, data))
    output.document({"file": bundle.file_name, "policy": shown_url(url), **_described(bundle)})
    output.line(("put", GOOD), f"  {bundle.file_name} into {shown_url(url)}; nodes take it by themselves")
    return exits.OK


def _read(path: Path) -> PolicyBundle:
    try:
        return inspect_policy(read_bounded(path), Ed25519Verifier())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _described(bundle: PolicyBundle) -> dict[str, Any]:
    policy = bundle.policy
    return {
        "fleet": policy.fleet,
        "version": policy.version,
        "digest": bundle.digest.hex(),
        "signer": bundle.signer.hex() or None,
    }
