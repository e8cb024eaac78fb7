"""`stigmergy keys`: make keys, show their public half, change who signs a journal. It never prints a private key."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from stigmergy.app.fleet import (
    PublicKey,
    default_key_path,
    encode_public_key,
    fingerprint,
    is_private_key,
    load_signer,
    make_private_key,
    open_rotation,
    read_key,
)
from stigmergy.base.errors import ConfigError
from stigmergy.base.trust import Signer
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, NAME, Output
from stigmergy.cli.display.places import add_place, ask, config_of, find_journal, find_running
from stigmergy.control.protocol import EnrolRequest, RevokeRequest

EXAMPLES = """examples:
  stigmergy keys new north.key --comment "drone 7, north field"
  stigmergy keys show north.key                   the public line, for others to paste
  stigmergy keys rotate --old fleet.key --new north.key
  stigmergy run drone:fleet --key north.key       sign with it from now on
  stigmergy keys revoke fleet.key --with north.key
"""


def add_commands(commands: Any) -> None:
    """Adds `keys`."""
    group = commands.add_parser(
        "keys",
        help="make, show, rotate and revoke keys",
        description="Makes keys, shows their public half, and changes who signs a journal.",
        epilog=EXAMPLES,
    )
    actions = group.add_subparsers(metavar="ACTION", required=True)
    parser = actions.add_parser("new", run=new, help="make a key in a new file")
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--comment", default="", help="up to 64 characters that say whose key it is")
    for name, shown, what in (
        ("show", encode_public_key, "print the public line of a key"),
        ("fingerprint", fingerprint, "print the few letters that people compare"),
    ):
        parser = actions.add_parser(name, help=what)
        parser.add_argument("key", metavar="KEY", help="a key file, private or public, a public line or hex digits")
        parser.set_defaults(run=show, shown=shown)
    parser = actions.add_parser("rotate", run=rotate, help="let another key sign a journal")
    parser.add_argument("--old", metavar="FILE", type=Path, help="a key that may sign now; not needed if a node runs")
    parser.add_argument("--new", metavar="KEY", required=True, help="the key that may sign from now on")
    add_place(parser, fleet=False)
    parser = actions.add_parser("revoke", run=revoke, help="end the validity of a key's signatures")
    parser.add_argument("key", metavar="KEY", help="the key to revoke")
    parser.add_argument("--with", dest="signing", metavar="FILE", type=Path, help="another key that may sign now")
    parser.add_argument("--last-position", metavar="P", type=int, help="its last position that counts; else up to now")
    add_place(parser, fleet=False)


def new(arguments: argparse.Namespace, output: Output) -> int:
    """Makes a key."""
    public = make_private_key(arguments.file, arguments.comment).public
    output.document({"file": str(arguments.file), **_described(public)})
    output.line(("made", GOOD), f" {arguments.file}  ", (fingerprint(public), NAME))
    output.note("keep it to yourself and keep a copy; others need only what `stigmergy keys show` prints")
    return exits.OK


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Prints the public line, or the fingerprint."""
    public = read_key(arguments.key)
    output.document(_described(public))
    output.line(arguments.shown(public))
    return exits.OK


def rotate(arguments: argparse.Namespace, output: Output) -> int:
    """Enrols another key."""
    public = read_key(arguments.new)
    path = find_running(arguments)
    if path is not None:
        ask(path, EnrolRequest(algorithm=public.algorithm, public_key=public.key.hex()))
    else:
        old = _signing_key(arguments, arguments.old, "--old")
        # If the private key is available, it signs the end of the log at once: then its node need trust no other key.
        new = Path(arguments.new)
        accepting = load_signer(new, create=False) if new.exists() and is_private_key(new) else None
        asyncio.run(_enrol(find_journal(arguments), old, public, accepting))
    output.document({"enrolled": True, **_described(public)})
    output.line(("enrolled", GOOD), "  ", (fingerprint(public), NAME), " may sign from now on")
    output.note(
        "start with it: stigmergy run … --key FILE, and --trust OLD if it has not signed here yet; "
        "then the old one can be revoked: stigmergy keys revoke"
    )
    return exits.OK


def revoke(arguments: argparse.Namespace, output: Output) -> int:
    """Revokes a key."""
    public = read_key(arguments.key)
    path = find_running(arguments)
    if path is not None:
        request = RevokeRequest(
            algorithm=public.algorithm, public_key=public.key.hex(), last_position=arguments.last_position
        )
        ask(path, request)
    else:
        signing = _signing_key(arguments, arguments.signing, "--with")
        asyncio.run(_revoke(find_journal(arguments), signing, public, arguments.last_position))
    output.document({"revoked": True, **_described(public)})
    output.line(("revoked", GOOD), "  ", (fingerprint(public), NAME), " signs no longer")
    return exits.OK


async def _enrol(url: str, signing: Path, public: PublicKey, accepting: Signer | None) -> None:
    journal, rotation = await open_rotation(url, signing)
    try:
        await rotation.enrol((public.algorithm, public.key))
        if accepting is not None:
            await rotation.accept(accepting)
    finally:
        await journal.close()


async def _revoke(url: str, signing: Path, public: PublicKey, last_position: int | None) -> None:
    journal, rotation = await open_rotation(url, signing)
    try:
        await rotation.revoke((public.algorithm, public.key), last_position)
    finally:
        await journal.close()


def _signing_key(arguments: argparse.Namespace, given: Path | None, option: str) -> Path:
    """The key file that signs the change: the one given, or the one that belongs to the journal."""
    config = config_of(arguments)
    path = given or (Path(config.fleet.key) if config.fleet.key else default_key_path("", find_journal(arguments)))
    if path is None or not path.exists():
        raise ConfigError(f"nobody runs this journal, so a key that may sign it is needed; give it with {option} FILE")
    return path


def _described(public: PublicKey) -> dict[str, Any]:
    return {
        "algorithm": public.algorithm,
        "public_key": public.key.hex(),
        "line": encode_public_key(public),
        "fingerprint": fingerprint(public),
        "comment": public.comment,
    }
