"""`stigmergy ca`: the private authority of a fleet, and the identities that it gives. It never prints a private key."""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stigmergy.base.errors import ConfigError, LinkDown, NotRunning
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, WARN, Output, counted
from stigmergy.pki.files import read_file, write_file
from stigmergy.pki.holders import Holder, read_holders
from stigmergy.pki.identity import REVOKED, with_identity
from stigmergy.pki.names import KINDS, SERVER, subject_of

if TYPE_CHECKING:
    from stigmergy.nats.link import NatsLink
    from stigmergy.pki.certificates import Certificate

AUTHORITY = Path("ca")
REQUEST = "request.pem"
DAY_S = 86_400
SOON_S = 14 * DAY_S
EXAMPLES = """on one machine:
  stigmergy ca init town                               the authority of the fleet town, in the folder ca
  stigmergy ca issue server hub-1 --host hub-1         an identity for a server, in the folder hub-1
  stigmergy ca issue node north --key north.key        for a node that signs its log with this key
on several, where no private key leaves its machine:
  stigmergy ca request node north --fleet town         there: makes north/ with a key, and north/request.pem
  stigmergy ca issue --request request.pem             at the authority: writes request.crt
  stigmergy ca install north request.crt               there again
afterwards:
  stigmergy ca renew north
  stigmergy ca revoke north
  stigmergy ca list
"""


def add_commands(commands: Any) -> None:
    """Adds `ca`."""
    group = commands.add_parser(
        "ca",
        help="certificates: a private authority, identities",
        description="Runs the private authority of a fleet: issues, renews and revokes certificates.",
        epilog=EXAMPLES,
    )
    actions = group.add_subparsers(metavar="ACTION", required=True)
    parser = actions.add_parser("init", run=init, help="make the authority of a fleet")
    parser.add_argument("fleet", metavar="FLEET", help="the name of the fleet")
    parser.add_argument("--days", metavar="N", type=float, help="how long it is valid (3650)")
    _add_authority(parser)
    parser = actions.add_parser("request", run=request, help="make a key, and ask for a certificate")
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=KINDS, help=f"one of {', '.join(KINDS)}")
    parser.add_argument("name", metavar="NAME", nargs="?")
    parser.add_argument("--fleet", metavar="FLEET", help="the name of the fleet")
    parser.add_argument("--renew", metavar="DIR", type=Path, help="ask again for the identity in this folder")
    _add_identity(parser)
    parser = actions.add_parser("issue", run=issue, help="give out a certificate")
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=KINDS, help=f"one of {', '.join(KINDS)}")
    parser.add_argument("name", metavar="NAME", nargs="?")
    parser.add_argument("--request", metavar="FILE", type=Path, help="a request that was made on another machine")
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name or address that others connect to it by; repeatable",
    )
    _add_identity(parser)
    _add_days(parser)
    _add_authority(parser)
    parser = actions.add_parser("install", run=install, help="put the answer to a request in place")
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder whose request it answers")
    parser.add_argument("answer", metavar="FILE", type=Path)
    parser = actions.add_parser("renew", run=renew, help="give a member its next certificate")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="an identity on this machine")
    parser.add_argument("--request", metavar="FILE", type=Path, help="a request made by `ca request --renew`")
    parser.add_argument("--key", metavar="FILE", type=Path, help="its Ed25519 key, if that is not in the folder")
    parser.add_argument(
        "--nats", metavar="URL", help="ask over these servers, whose authority answers: `ca serve`, `up`"
    )
    _add_days(parser)
    _add_authority(parser)
    parser = actions.add_parser("serve", run=serve, help="renew certificates over NATS, until it is stopped")
    parser.add_argument("--nats", metavar="URL", required=True, help="the servers that members are connected to")
    _add_days(parser)
    _add_authority(parser)
    parser = actions.add_parser("revoke", run=revoke, help="take somebody's certificates back, for good")
    parser.add_argument("name", metavar="NAME")
    _add_authority(parser)
    parser = actions.add_parser("list", run=show, help="who has certificates, and until when")
    _add_authority(parser)


def _add_authority(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ca", metavar="DIR", type=Path, default=AUTHORITY, help=f"the folder of the authority ({AUTHORITY})"
    )


def _add_identity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="DIR", type=Path, help="the folder of the identity; else NAME")
    parser.add_argument(
        "--key", metavar="FILE", type=Path, help="the Ed25519 key that it signs its log with; a node without gets one"
    )


def _add_days(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", metavar="N", type=float, help="how long the certificate is valid (90)")


def init(arguments: argparse.Namespace, output: Output) -> int:
    """Makes an authority."""
    from stigmergy.pki.authority import AUTHORITY_DAYS, CERTIFICATE, AuthorityFolder

    made = AuthorityFolder.create(arguments.ca, arguments.fleet, _days(arguments, AUTHORITY_DAYS))
    output.document({"fleet": made.fleet, "folder": str(made.path), "until": date(made.until_s)})
    output.line(
        ("made", GOOD), " the authority of ", (made.fleet, NAME), f" in {made.path}, until {date(made.until_s)}"
    )
    output.note(
        f"{made.path / 'ca.key'} decides who belongs to the fleet: keep it on a machine of its own, and a copy; "
        f"others need only {made.path / CERTIFICATE}"
    )
    return exits.OK


def request(arguments: argparse.Namespace, output: Output) -> int:
    """Makes a key in its folder, and a request beside it."""
    from stigmergy.pki.enrolment import read_identity, request_for

    if arguments.renew is not None:
        if arguments.kind or arguments.to or arguments.fleet:
            raise ConfigError("--renew DIR says whose certificate it is; leave kind, name, --fleet and --to out")
        subject, folder = read_identity(arguments.renew).subject, arguments.renew
    else:
        if not arguments.name or not arguments.fleet:
            raise ConfigError("who, and of which fleet? Give KIND and NAME, such as node north, and --fleet town")
        subject = subject_of(arguments.fleet, arguments.kind, arguments.name)
        folder = arguments.to or Path(subject.name)
    pem = request_for(folder, subject, arguments.key)
    write_file(folder / REQUEST, pem)
    output.document({"folder": str(folder), "request": str(folder / REQUEST), "identity": subject.uri})
    output.line(("asks", GOOD), "  ", (subject.shown, NAME), f": give {folder / REQUEST} to the authority")
    action = "issue" if arguments.renew is None else "renew"
    output.note(f"there: stigmergy ca {action} --request {REQUEST}; then here: stigmergy ca install {folder} FILE")
    return exits.OK


def issue(arguments: argparse.Namespace, output: Output) -> int:
    """Gives out a certificate: for a request, or for an identity that is made here."""
    from stigmergy.pki.authority import DAYS, AuthorityFolder
    from stigmergy.pki.enrolment import install as put
    from stigmergy.pki.enrolment import request_for

    if (arguments.request is None) == (arguments.name is None):
        raise ConfigError("for whom? Give KIND and NAME, such as node north; or --request FILE from another machine")
    authority, days = AuthorityFolder(arguments.ca), _days(arguments, DAYS)
    if arguments.request is not None:
        if arguments.to or arguments.key:
            raise ConfigError("the keys are where the request was made; leave --to and --key out")
        pem = authority.issue(_read_request(arguments.request), tuple(arguments.host), days)
        return _answer(arguments.request, pem, authority.certificate, output)
    subject = subject_of(authority.fleet, arguments.kind, arguments.name)
    folder = arguments.to or Path(subject.name)
    pem = authority.issue(request_for(folder, subject, arguments.key), tuple(arguments.host), days)
    _tell(put(folder, pem, authority.certificate), folder, output)
    return exits.OK


def install(arguments: argparse.Namespace, output: Output) -> int:
    """Puts a certificate in place."""
    from stigmergy.pki.enrolment import install as put
    from stigmergy.pki.enrolment import split_answer

    answer = read_file(arguments.answer, "the file that `stigmergy ca issue --request` has written")
    _tell(put(arguments.folder, *split_answer(answer)), arguments.folder, output)
    return exits.OK


def renew(arguments: argparse.Namespace, output: Output) -> int:
    """Gives out a further certificate."""
    from stigmergy.pki.authority import DAYS, AuthorityFolder
    from stigmergy.pki.enrolment import install as put
    from stigmergy.pki.enrolment import read_identity, request_for

    if (arguments.request is None) == (arguments.folder is None):
        raise ConfigError("whose? Give the folder of an identity; or --request FILE from another machine")
    if arguments.nats is not None:
        return _renew_over(arguments, output)
    authority, days = AuthorityFolder(arguments.ca), _days(arguments, DAYS)
    if arguments.request is not None:
        pem = authority.renew(_read_request(arguments.request), days)
        return _answer(arguments.request, pem, authority.certificate, output)
    subject = read_identity(arguments.folder).subject
    pem = authority.renew(request_for(arguments.folder, subject, arguments.key), days)
    _tell(put(arguments.folder, pem, authority.certificate), arguments.folder, output)
    return exits.OK


def _renew_over(arguments: argparse.Namespace, output: Output) -> int:
    """Asks whoever has the authority."""
    from stigmergy.nats.renewals import renew_over
    from stigmergy.nats.servers import on_cluster, parse_address

    folder: Path | None = arguments.folder
    if folder is None or arguments.days is not None:
        raise ConfigError("--nats renews the identity in a folder, for as long as its authority says: give DIR alone")
    address = parse_address(with_identity(arguments.nats, folder))
    try:
        made = asyncio.run(on_cluster(address, lambda link: renew_over(link, folder, arguments.key), name="renewal"))
    except LinkDown as error:
        raise NotRunning(f"{error}; is `stigmergy ca serve` up?") from None
    _tell(made, folder, output)
    return exits.OK


def serve(arguments: argparse.Namespace, output: Output) -> int:
    """Answers until it is stopped."""
    from stigmergy.nats.renewals import answer_renewals
    from stigmergy.nats.servers import on_cluster, parse_address
    from stigmergy.pki.authority import DAYS, AuthorityFolder

    authority, days, address = AuthorityFolder(arguments.ca), _days(arguments, DAYS), parse_address(arguments.nats)

    def ready() -> None:
        output.document({"event": "serving", "fleet": authority.fleet, "nats": address.shown})
        output.line(("renews", GOOD), " certificates of ", (authority.fleet, NAME), f" at {address.shown}")

    async def answer(link: NatsLink) -> None:
        await answer_renewals(link, authority, days, ready)

    try:
        asyncio.run(on_cluster(address, answer, name="stigmergy ca"))
    except LinkDown as error:
        raise NotRunning(str(error)) from None
    except KeyboardInterrupt:
        pass  # the usual way to end it
    return exits.OK


def revoke(arguments: argparse.Namespace, output: Output) -> int:
    """Revokes."""
    from stigmergy.pki.authority import AuthorityFolder

    authority = AuthorityFolder(arguments.ca)
    member = authority.revoke(arguments.name)
    output.document({"name": arguments.name, **_described(member)})
    output.line(("revoked", GOOD), f"  {member.kind} ", (arguments.name, NAME), ", for good")
    output.note(f"brokers have to learn it: see docs/certificates.md; the list is {authority.path / REVOKED}")
    return exits.OK


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Lists who has certificates."""
    register = read_holders(arguments.ca)
    members = sorted(register.members.items())
    output.document({"fleet": register.fleet, "members": [{"name": name, **_described(one)} for name, one in members]})
    rows = [
        ((name, NAME), one.kind, date(one.until_s), _standing(one), ", ".join(one.hosts), one.signing_key[:16])
        for name, one in members
    ]
    output.table(("NAME", "KIND", "UNTIL", "", "HOSTS", "SIGNS WITH"), rows)
    output.note(f"{register.fleet}: {counted(len(rows), 'member')}")
    return exits.OK


def date(at_s: float) -> str:
    """A day, as people write it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def _standing(member: Holder) -> tuple[str, str]:
    if member.revoked_s:
        return (f"revoked {date(member.revoked_s)}", BAD)
    left_s = member.until_s - time.time()
    return ("over", BAD) if left_s < 0 else ("ends soon", WARN) if left_s < SOON_S else ("valid", GOOD)


def _described(member: Holder) -> dict[str, Any]:
    return {
        "kind": member.kind,
        "state": _standing(member)[0],
        "until": date(member.until_s),
        "revoked": bool(member.revoked_s),
        "hosts": list(member.hosts),
        "signing_key": member.signing_key or None,
        "serials": [one.serial for one in member.certificates],
    }


def _days(arguments: argparse.Namespace, default: float) -> float:
    return default if arguments.days is None else float(arguments.days)


def _read_request(path: Path) -> bytes:
    return read_file(path, "the file that `stigmergy ca request` has written")


def _answer(path: Path, pem: bytes, authorities: bytes, output: Output) -> int:
    """Writes a certificate, and the authority behind it, beside the request that it answers."""
    to = path.with_suffix(".crt")
    write_file(to, pem + authorities)
    output.document({"answer": str(to)})
    output.line(("answered", GOOD), f"  {to}: there, stigmergy ca install DIR {to.name}")
    return exits.OK


def _tell(made: Certificate, folder: Path, output: Output) -> None:
    output.document({"folder": str(folder), "identity": made.subject.uri, "until": date(made.until_s)})
    output.line(
        ("identity", GOOD), "  ", (made.subject.shown, NAME), f" of {made.subject.fleet}, until {date(made.until_s)}"
    )
    if made.subject.kind != SERVER:
        output.note(f'links show it with --identity {folder}, or identity = "{folder}" in stigmergy.toml')


__all__ = ["add_commands", "date"]
