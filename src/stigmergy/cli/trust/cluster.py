"""The certificates of a cluster on several hosts: its authority, its operator, and the users of its servers."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, HEADING, Output, counted
from stigmergy.nats.servers.configuration import (
    OPERATOR,
    ROOT,
    USERS_FILE,
    Secured,
    ServerPlan,
    users_of_certificates,
    write_users,
)
from stigmergy.pki.files import PRIVATE, write_file
from stigmergy.pki.holders import LIST, read_holders
from stigmergy.pki.identity import PAIR, identity_url
from stigmergy.pki.names import ADMIN, PERSON, SERVER, subject_of

AUTHORITY = "ca"


def secure_cluster(folder: Path, secured: Secured, plans: list[ServerPlan]) -> None:
    """Makes the authority and the identities of whoever is on this machine, where they are not there yet; and the users
    of the servers. The key of a server on another host is made there."""
    from stigmergy.pki.authority import KEY, AuthorityFolder
    from stigmergy.pki.enrolment import install, request_for

    place = folder / AUTHORITY
    authority = AuthorityFolder(place) if (place / KEY).exists() else AuthorityFolder.create(place, secured.fleet)
    if authority.fleet != secured.fleet:
        raise ConfigError(f"{place} is the authority of {authority.fleet}; give --name {authority.fleet}")
    here = [] if secured.is_shared else [(SERVER, plan.name, (plan.host, "localhost")) for plan in plans]
    for kind, name, hosts in [(PERSON, OPERATOR, ()), (ADMIN, ROOT, ()), *here]:
        if not (folder / name / PAIR).exists():
            request = request_for(folder / name, subject_of(authority.fleet, kind, name))
            install(folder / name, authority.issue(request, hosts), authority.certificate)
    _write_users(folder)


def secured_urls(folder: Path, plans: list[ServerPlan]) -> str:
    """Where each kind of client connects."""
    replicas = min(3, len(plans) if len(plans) % 2 else len(plans) - 1)

    def hosts(port: str) -> list[str]:
        return [f"{plan.advertised or plan.host}:{getattr(plan, port)}" for plan in plans]

    url = f"tls://{','.join(hosts('port'))}?replicas={replicas}"
    lines = [
        "# the operator, at a command line; workers leave the files out and give their own --identity",
        identity_url(url, folder.resolve() / OPERATOR),
        "# the administrator of the servers: cluster replace --system URL",
        identity_url(url, folder.resolve() / ROOT),
        f"# gateways, with their --identity: {' '.join(f'--hub {hub}' for hub in hosts('leaf_port'))}",
    ]
    if plans[0].mqtt_port:
        lines.append(f"# devices that speak MQTT: mqtts://{', mqtts://'.join(hosts('mqtt_port'))}")
    return "\n".join(lines) + "\n"


def tell_secured(folder: Path, secured: Secured, plans: list[ServerPlan], output: Output) -> None:
    """What is left to do for a secure cluster."""
    authority = folder / AUTHORITY
    output.line(("Who may connect: ", HEADING), f"{authority}, and {folder / USERS_FILE} beside each configuration")
    for plan in plans if secured.is_shared else []:
        host = plan.advertised or plan.host
        asks = ["stigmergy", "ca", "request", SERVER, plan.name, "--fleet", secured.fleet, "--to", secured.folder]
        gives = ["stigmergy", "ca", "issue", "--request", "request.pem", "--host", host, "--ca", str(authority)]
        puts = ["stigmergy", "ca", "install", secured.folder, "request.crt"]
        output.line((f"{host}: ", HEADING), f"{shlex.join(asks)}; here: {shlex.join(gives)}; there: {shlex.join(puts)}")


def write_users_of(arguments: argparse.Namespace, output: Output) -> int:
    """Writes the users of the servers."""
    folder: Path = arguments.to
    if not (folder / AUTHORITY / LIST).exists():
        raise ConfigError(f"{folder} has no authority; give --to the folder of `stigmergy cluster config --secure`")
    count = _write_users(folder)
    output.document({"file": str(folder / USERS_FILE), "users": count})
    output.line(("written", GOOD), f"  {folder / USERS_FILE}: {counted(count, 'user')}")
    output.note("copy it beside the configuration of each server; there: kill -HUP $(pidof nats-server)")
    return exits.OK


def _write_users(folder: Path) -> int:
    users = users_of_certificates(read_holders(folder / AUTHORITY), time.time())
    write_file(folder / USERS_FILE, write_users(users).encode(), PRIVATE)
    return len(users)
