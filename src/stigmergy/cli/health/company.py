"""The mesh, the peers and the ledger: whether the socket can be bound, hosts are found, and the file is ours and whole.

Nothing is sent and nothing changed. A socket that is taken by the node itself, which runs, is well.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stigmergy.cli.asking import ask
from stigmergy.cli.health.disk import REMOTE, mount_of, read_mounts
from stigmergy.cli.health.finding import Finding, ill, well, worry
from stigmergy.cli.output import counted, shown_bytes
from stigmergy.cli.places import load_fleet
from stigmergy.config import Place
from stigmergy.core.errors import LedgerUnavailable, StigmergyError
from stigmergy.ledgers import SCHEMES as ON_NATS
from stigmergy.ledgers import LedgerLook, look_at_ledger
from stigmergy.runtime.needs import needs_of
from stigmergy.runtime.protocol import Status
from stigmergy.wiring import (
    SQLITE,
    answers_at,
    control_path,
    fingerprint,
    inspect_journal,
    inspect_ledger,
    journal_path,
    read_key,
    read_mesh_url,
)

LEDGER_S_MAX = 3.0
"""So long the chain of a ledger is followed at most."""
LOOK_UP_S_MAX = 3.0
"""So long all hosts together may take to be found."""
LEDGER_FREE_BYTES_MIN = 16 * 1024 * 1024
HOSTS_SHOWN_MAX = 5
UDP = "udp:"


def check_company(place: Place, url: str | None) -> Iterator[Finding]:
    """All that a configuration says of others; `url` is the journal of the node, if it is known."""
    if place.mesh is not None:
        yield from check_mesh(place.mesh, runs=_runs(url))
    if place.peers:
        yield from check_peers(place.peers)
    if place.ledger is not None:
        yield from check_ledger(place.ledger, fleet_of(url))


def check_needs(place: Place, spec: str, folder: Path) -> Iterator[Finding]:
    """Whether what the fleet's agents need is configured."""
    try:
        needs = needs_of(load_fleet(spec, folder), place.agents)
    except StigmergyError as error:
        yield ill("needs.fleet", str(error), "mend the module: the fleet does not start")
        return
    where = "under [fleet] in stigmergy.toml"
    if needs.why_ledger and place.ledger is None:
        remedy = f'ledger = "sqlite:ledger.db" {where}, or "nats://hub:4222?replicas=3" for several machines'
        yield ill("needs.ledger", f"no ledger, and {needs.why_ledger}: the fleet does not start", remedy)
    elif needs.why_ledger:
        yield well("needs.ledger", f"{needs.why_ledger}, and a ledger is configured")
    if needs.why_heard and place.bus is None:
        remedy = f'bus = "mqtt://gateway:1883" {where}, if somebody is to hear; workers do not start without'
        yield worry("needs.bus", f"no bus, and {needs.why_heard}: a node is heard by nobody", remedy)
    elif needs.shares and place.bus is None and place.mesh is None:
        what = f"no bus and no mesh: {', '.join(needs.shares)}: only agents of one node share"
        yield well("needs.bus", what)
    elif needs.why_bus:
        yield well("needs.bus", f"{needs.why_bus}, and a way to others is configured")


def check_mesh(url: str, *, runs: bool) -> Iterator[Finding]:
    """The address that the node listens on, and the hosts of its peers."""
    if not url.startswith(UDP):
        yield well("mesh.configured", f"{url.partition(':')[0]}: is an adapter of its own; nothing to look at")
        return
    try:
        options = read_mesh_url(url)
    except StigmergyError as error:
        yield ill("mesh.configured", str(error), "mend mesh under [fleet] in stigmergy.toml; see docs/membership.md")
        return
    if not options.key:
        what = "datagrams are not sealed: whoever can send to this port can say which node it is"
        yield worry("mesh.sealed", what, "give all nodes one key: …&key_file=mesh.secret; changes are signed anyhow")
    yield check_binding(options.host, options.port, runs=runs)
    yield from check_hosts([host for _, host, _ in options.peers])


def check_binding(host: str, port: int, *, runs: bool) -> Finding:
    """Whether the socket can be bound here."""
    where = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as opened:
            opened.bind(address)
    except socket.gaierror:
        return ill("mesh.binds", f"{host} has no address here", "name an address of this machine, or 0.0.0.0", at=where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and runs:
            return well("mesh.binds", f"{where} is taken, and the node runs", at=where)
        remedies = {
            errno.EADDRINUSE: "another node or program has it: stop that one, or choose another port",
            errno.EADDRNOTAVAIL: "that is no address of this machine: name one, or 0.0.0.0",
            errno.EACCES: "ports below 1024 need rights: choose a higher one",
        }
        remedy = remedies.get(error.errno or 0, "choose another address and port")
        return ill("mesh.binds", f"{where}: {error.strerror or error}", remedy, at=where)
    return well("mesh.binds", f"{where} can be bound", at=where)


def check_hosts(hosts: Sequence[str]) -> Iterator[Finding]:
    """Whether the names of the peers' hosts are found; all at once, and nobody waits for ever."""
    names = list(dict.fromkeys(hosts))
    if not names:
        what = "no peers are named: this node waits until another one names it"
        yield worry("mesh.peers", what, "name one or two that are mostly there: …?peers=north@10.0.0.7:7946")
        return
    found: dict[str, bool] = {}
    threads = [threading.Thread(target=_look_up, args=(name, found), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + LOOK_UP_S_MAX
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    lost = [name for name in names if not found.get(name)]
    if lost:
        more = len(lost) - HOSTS_SHOWN_MAX
        what = f"no address for {', '.join(lost[:HOSTS_SHOWN_MAX])}" + (f" and {more} more" if more > 0 else "")
        remedy = "mend the names, or the name service; until then those peers are not reached, and asked for again"
        yield ill("mesh.peers", what, remedy, lost=lost)
        return
    yield well("mesh.peers", f"{counted(len(names), 'host')} of peers, all with an address", hosts=len(names))


def _look_up(name: str, found: dict[str, bool]) -> None:
    with contextlib.suppress(OSError):
        found[name] = bool(socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM))


def check_peers(peers: Sequence[str]) -> Iterator[Finding]:
    """The keys whose changes and claims are taken."""
    names: list[str] = []
    for text in peers:
        try:
            names.append(fingerprint(read_key(text)))
        except StigmergyError as error:
            yield ill("peers.keys", str(error), "mend peers under [fleet] in stigmergy.toml: the node does not start")
    if len(names) == len(peers):
        yield well("peers.keys", f"{counted(len(names), 'key')} of peers can be read", fingerprints=names)


def check_ledger(url: str, fleet: str | None) -> Iterator[Finding]:
    """The file of the ledger: rights, room, whether it is ours, and whole as far as a few seconds go."""
    scheme = url.partition(":")[0]
    if url.startswith(ON_NATS):
        yield from _check_on_nats(url, fleet)
        return
    if not url.startswith(SQLITE):
        inside = scheme == "memory"
        what = "a ledger inside this process: claims are ordered for this node alone, and forgotten at its end"
        yield well("ledger.configured", what if inside else f"{scheme}: is an adapter of its own; nothing to look at")
        return
    path = Path(url.removeprefix(SQLITE))
    yield from _check_folder(path.parent)
    try:
        found = inspect_ledger(url, fleet, LEDGER_S_MAX)
    except LedgerUnavailable as error:
        yield worry(
            "ledger.opens", str(error), "look again in a moment; leases run out meanwhile, nothing is held twice"
        )
        return
    except StigmergyError as error:
        yield ill("ledger.opens", str(error), "nothing is granted until then; agents go on without")
        return
    if found is None:
        yield well("ledger.opens", f"{path} is not there yet; the first start makes it")
        return
    what = f"the ledger of {found.name}, {counted(found.last, 'entry', 'entries')}, "
    yield well("ledger.opens", what + shown_bytes(found.file_bytes), name=found.name, last=found.last)
    if not found.is_writable:
        yield ill("ledger.rights", f"{path} cannot be written by this user", "give it rights to file and folder")
    facts = {"checked": found.checked, "whole": found.is_whole}
    kept = found.last - found.first + 1
    if found.is_whole:
        yield well("ledger.whole", f"{found.checked:,} entries that are kept, chained to the last", **facts)
    else:
        yield well("ledger.whole", f"nothing wrong in the first {found.checked:,} entries of {kept:,}", **facts)


def _check_on_nats(url: str, fleet: str | None) -> Iterator[Finding]:
    """Whether it answers and is ours, and everything in it is what was signed."""
    if fleet is None:
        yield well(
            "ledger.configured", "a ledger on NATS; start the node once, then it is looked at by the fleet's name"
        )
        return
    try:
        found = asyncio.run(_look(url, fleet))
    except TimeoutError:
        yield well("ledger.opens", f"nothing wrong in what was read of it in {LEDGER_S_MAX:g} s")
    except LedgerUnavailable as error:
        yield worry("ledger.opens", str(error), "look again in a moment; nothing is granted meanwhile")
    except StigmergyError as error:
        yield ill("ledger.opens", str(error), "nothing is granted until then; agents go on without")
    else:
        yield well(
            "ledger.opens",
            f"{found.place}, {counted(found.entries, 'entry', 'entries')}, {counted(len(found.writers), 'writer')}",
            name=fleet,
            last=found.entries,
        )
        yield well("ledger.whole", f"{counted(found.messages, 'message')} chained and signed", head=found.head)
        if strangers := {why: count for why, count in found.passed_over.items() if count and why != "repeated"}:
            said = ", ".join(f"{count:,} {why}" for why, count in strangers.items())
            yield worry(
                "ledger.strangers",
                f"messages that do not count: {said}",
                "let nobody but your nodes publish to its stream",
                **strangers,
            )


async def _look(url: str, fleet: str) -> LedgerLook:
    async with asyncio.timeout(LEDGER_S_MAX):
        return await look_at_ledger(url, fleet)


def _check_folder(folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        yield ill("ledger.folder", f"{folder} is no folder", f"make it: mkdir -p {folder}")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield ill("ledger.rights", f"{folder} cannot be written by this user", "give it the right to")
    mount = mount_of(folder.resolve(), read_mounts())
    if mount is not None and mount.kind in REMOTE:
        what = f"{folder} is on {mount.kind}, and networks break the locks that give claims their order"
        yield ill("ledger.filesystem", what, "put the ledger on a disk of this machine; it is for one machine only")
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < LEDGER_FREE_BYTES_MIN:
        yield ill(
            "ledger.free", f"{shown_bytes(free)} free", "make room: without it nothing is granted", free_bytes=free
        )


def _runs(url: str | None) -> bool:
    return url is not None and journal_path(url) is not None and answers_at(control_path(url, ""))


def fleet_of(url: str | None) -> str | None:
    """The fleet of the journal, whose name the ledger must have; None if there is none yet, or it cannot be read."""
    path = None if url is None else journal_path(url)
    if url is None or path is None or not path.exists():
        return None
    with contextlib.suppress(StigmergyError):
        if _runs(url):
            return str(ask(control_path(url, ""), Status())["fleet"])
        journal = inspect_journal(url)
        asyncio.run(journal.close())
        return journal.identity.fleet
    return None
