"""Checks of the mesh, the peers and the ledger: the socket can be bound, hosts resolve, the file is ours and intact.

It sends and changes nothing. A socket that the running node itself has bound is fine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from stigmergy.app.config import FleetConfig
from stigmergy.app.copies import CopiesAt
from stigmergy.app.fleet import (
    SQLITE,
    answers_at,
    control_path,
    find_holds,
    fingerprint,
    inspect_journal,
    inspect_ledger,
    journal_path,
    read_key,
    read_mesh_url,
    read_private_key,
    verifier,
)
from stigmergy.app.journals import NATS, find_parts
from stigmergy.app.keyring import check_not_gone
from stigmergy.app.ledgers import SCHEMES as ON_NATS
from stigmergy.app.ledgers import LedgerLook, look_at_ledger
from stigmergy.app.node_config import open_store, shown
from stigmergy.app.parts import left_beside, part_urls
from stigmergy.audit.listing import readable_time
from stigmergy.audit.restore import find_copies
from stigmergy.audit.verification import Verification
from stigmergy.base.errors import ConfigError, JournalLocked, LedgerUnavailable, LinkDown, StigmergyError, StoreError
from stigmergy.base.system import SystemClock
from stigmergy.cli.display.output import counted, shown_bytes
from stigmergy.cli.display.places import ask, closing_journal, load_fleet
from stigmergy.cli.machine_checks import REMOTE, Finding, free_bytes, ill, mount_of, read_mounts, well, worry
from stigmergy.control.protocol import StatusRequest
from stigmergy.journal.port import Journal
from stigmergy.node.needs import needs_of

LEDGER_S_MAX = 3.0
"""So long the chain of a ledger is followed at most."""
LOOK_UP_S_MAX = 3.0
"""So long all hosts together may take to be found."""
LEDGER_FREE_BYTES_MIN = 16 * 1024 * 1024
HOSTS_SHOWN_MAX = 5
UDP = "udp:"


def check_replication(place: FleetConfig, url: str | None) -> Iterator[Finding]:
    """All that a configuration says of others; `url` is the journal of the node, if it is known."""
    if place.mesh is not None:
        yield from check_mesh(place.mesh, runs=_runs(url))
    if place.peers:
        yield from check_peers(place.peers)
    if place.ledger is not None:
        yield from check_ledger(place.ledger, fleet_of(url))


def check_needs(place: FleetConfig, spec: str, folder: Path) -> Iterator[Finding]:
    """Whether what the fleet's agents need is configured."""
    try:
        needs = needs_of(load_fleet(spec, folder), place.agents)
    except StigmergyError as error:
        yield ill("needs.fleet", str(error), "fix the module: the fleet does not start")
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
        yield ill("mesh.configured", str(error), "fix mesh under [fleet] in stigmergy.toml; see docs/membership.md")
        return
    if not options.key:
        what = "datagrams are not sealed: any sender to this port can pretend to be any node"
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
        remedy = "fix the names, or the name service; until then those peers are not reached, and are looked up again"
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
            yield ill("peers.keys", str(error), "fix peers under [fleet] in stigmergy.toml: the node does not start")
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
    free = free_bytes(folder)
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
            return ask(control_path(url, ""), StatusRequest()).fleet
        with closing_journal(inspect_journal(url)) as journal:
            return journal.identity.fleet
    return None


# Checks of the stores that a journal is copied to: whether they can be reached, and their newest copy. It sends and
# changes nothing.

COPIES_S_MAX = 10.0
"""So long one store may take to say what it has."""
OLD_S = 3600.0
NS = 1_000_000_000


def check_copies(stores: Sequence[str], fleet: str | None, node: str, now_ns: int) -> Iterator[Finding]:
    """Each store that the configuration names. Without a journal nobody knows the fleet, and what is there."""
    for url in stores:
        if fleet is None:
            yield well("copies.configured", f"{shown(url)}: the first start will copy there")
            continue
        try:
            yield asyncio.run(_look_at(url, fleet, node, now_ns))
        except (StigmergyError, TimeoutError) as error:
            what = f"{shown(url)}: {str(error) or 'no answer'}"
            yield ill("copies.reachable", what, "the node goes on, and copies when it is there; docs/copies.md")


async def _look_at(url: str, fleet: str, node: str, now_ns: int) -> Finding:
    async with asyncio.timeout(COPIES_S_MAX), CopiesAt(url, fleet) as objects:
        found = [one for one in await find_copies(objects, node) if one.manifest is not None]
    if not found or found[-1].manifest is None:
        what = f"{shown(url)} has no copy of {fleet} at {node} yet"
        return worry("copies.newest", what, "run the node with this configuration; `stigmergy status` has its troubles")
    newest = found[-1]
    facts = {"version": newest.version, "commits": found[-1].manifest.commits, "points": len(found)}
    what = f"{shown(url)}: {counted(facts['commits'], 'commit')} as of {readable_time(newest.made_ns)[:19]}"
    if now_ns - newest.made_ns > OLD_S * NS:
        return worry("copies.newest", what, "nothing new since, or the node cannot reach it: see its troubles", **facts)
    return well("copies.newest", what, **facts)


# Checks of the journal, its key, its holds and its archive: present, readable, and consistent. A running node is asked.
# A stopped journal is opened for reading and verified for a few seconds.

VERIFY_S_MAX = 3.0
AHEAD_S_MAX = 60
Signers = dict[bytes, int | None]
"""The keys of a log, each with where it was revoked."""


def check_journal(url: str, key: Path | None, wall_ns: int) -> Iterator[Finding]:
    """The journal, and whether the key is one of its keys."""
    signers: Signers | None = None
    path = journal_path(url)
    if url.startswith(NATS):
        found, signers = _elsewhere(url, wall_ns)
        yield from found
    elif path is None:
        yield well("journal.opens", f"{url.partition(':')[0]}: is no file; nothing to look at")
    else:
        if not path.exists():
            yield _missing(url, path, key)
        elif answers_at(control_path(url, "")):
            found, signers = _running(control_path(url, ""))
            yield from found
        else:
            for part in part_urls(url) or [url]:
                found, signers = _stopped(part, wall_ns)
                yield from found
        yield from _holds(url)
    if key is not None:
        yield from check_key(key, signers)


def _missing(url: str, path: Path, key: Path | None) -> Finding:
    """There is no journal: not yet, or not any more."""
    try:
        if key is not None:
            check_not_gone(key, url)
    except StigmergyError as error:
        return ill("journal.opens", str(error), "restore a copy; stigmergy restore, if the node has made some")
    if left := left_beside(url):
        what = f"{path} is not there, but {left[0]} is"
        return worry("journal.opens", what, "restore a copy; to start empty, remove that file")
    return well("journal.opens", f"{path} is not there yet; the first start makes it")


def _elsewhere(url: str, wall_ns: int) -> tuple[list[Finding], Signers | None]:
    """One that servers keep: it can be looked at whether it is run or not."""
    try:
        parts = find_parts(url) or [url]
    except LinkDown as error:
        return [ill("journal.opens", str(error), "start the servers, or name the right ones")], None
    except ConfigError as error:
        return [worry("journal.opens", str(error), "fix the URL, or start the node once")], None
    found: list[Finding] = []
    signers: Signers | None = None
    for part in parts:
        more, signers = _stopped(part, wall_ns)
        found += more
    return found, signers if len(parts) == 1 else None


def _running(path: Path) -> tuple[list[Finding], Signers | None]:
    try:
        status = ask(path, StatusRequest())
    except StigmergyError as error:
        return [ill("journal.node", f"a node listens at {path} and does not answer: {error}", "look at it")], None
    signers = {bytes.fromhex(one.public_key): one.revoked_after for one in status.signers}
    what = f"a node runs it (process {status.pid}), {counted(status.agents, 'agent')}, "
    found = [well("journal.node", what + shown_bytes(status.journal_bytes), pid=status.pid)]
    found += [worry("journal.troubles", trouble, "see stigmergy status") for trouble in status.troubles]
    if status.dead_letters:
        what = counted(status.dead_letters, "dead letter")
        found.append(worry("journal.letters", what, "see stigmergy letters; retry or drop them"))
    if status.stopped:
        what = f"{counted(len(status.stopped), 'agent')} stopped by supervision"
        found.append(worry("journal.stopped", what, "see stigmergy status; then stigmergy resume"))
    return found, signers


def _stopped(url: str, wall_ns: int) -> tuple[list[Finding], Signers | None]:
    try:
        with closing_journal(inspect_journal(url)) as journal:
            size = journal.size()
            what = f"{counted(size.commits, 'commit')}, {shown_bytes(size.bytes_used)}, fleet {journal.identity.fleet}"
            found = [well("journal.opens", what, commits=size.commits, bytes=size.bytes_used)]
            found += _ahead(journal, wall_ns)
            verified, signers = _verified(journal)
            return [*found, verified], signers
    except JournalLocked as error:
        return [worry("journal.opens", str(error), "a program has it open that does not listen; ask that one")], None
    except StigmergyError as error:
        return [ill("journal.opens", str(error), "restore a copy, and keep this one")], None


def _ahead(journal: Journal, wall_ns: int) -> list[Finding]:
    """Whether the clock is behind what the journal has seen already."""
    last_ns = max(
        (stored.sealed.time_ns for head in journal.heads() for stored in journal.read(head.shard, head.position - 1)),
        default=0,
    )
    behind_s = (last_ns - wall_ns) / 1e9
    if behind_s <= AHEAD_S_MAX:
        return []
    what = f"the last commit is {behind_s:,.0f} s ahead of the clock: time stands still in the log until then"
    return [worry("clock.journal", what, "set the clock; it was wrong then or is now", seconds=round(behind_s))]


def _verified(journal: Journal) -> tuple[Finding, Signers | None]:
    verification = Verification(journal, verifier())
    until_s = time.monotonic() + VERIFY_S_MAX
    whole = True
    for _ in verification.run_slowly():
        if time.monotonic() > until_s:
            whole = False
            break
    found = verification.found
    facts = {"commits": found.commits, "of": verification.commits_expected, "whole": whole}
    if not found.sound:
        first = found.problems[0]
        what = f"shard {first.shard}, position {first.position}: {first.what}"
        return ill("journal.verifies", what, "see stigmergy log verify; restore a copy", **facts), None
    if not whole:
        what = f"nothing wrong in the first {counted(found.commits, 'commit')} of {verification.commits_expected:,}"
        return well("journal.verifies", f"{what}; stigmergy log verify checks all", **facts), None
    signers = {record.public_key: record.revoked_after for record in found.signers}
    return well("journal.verifies", f"{counted(found.commits, 'commit')}, all sound", **facts), signers


def check_key(path: Path, signers: Signers | None) -> Iterator[Finding]:
    """The key file: there, ours alone, whole, and one of the journal's."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if signers:
            remedy = f"put it back; without it nobody can go on with this journal (chmod 600 {path})"
            yield ill("keys.file", f"{path} is not there, and the journal is signed", remedy)
        else:
            yield well("keys.file", f"{path} is not there yet; the first start makes it")
        return
    except OSError as error:
        yield ill("keys.file", f"{path}: {error.strerror}", "give this user the right to read it")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        yield ill("keys.mode", f"{path} is open to others (mode {mode:04o})", f"chmod 600 {path}; think of a new key")
        return
    yield well("keys.mode", f"{path} is for its owner only (mode {mode:04o})")
    try:
        public = read_private_key(path).public
    except StigmergyError as error:
        yield ill("keys.file", str(error), "restore it from a copy")
        return
    name = fingerprint(public)
    yield well("keys.file", f"{path} is whole: {name}", fingerprint=name)
    if signers is None:
        return
    if public.key not in signers:
        remedy = "start with the key that signs it, or let that one enrol this one: stigmergy keys rotate"
        yield ill("keys.journal", f"{name} may not sign this journal", remedy, fingerprint=name)
    elif signers[public.key] is not None:
        yield ill("keys.journal", f"{name} was revoked in this journal", "use its newer key", fingerprint=name)
    else:
        yield well("keys.journal", f"{name} signs this journal", fingerprint=name)


def _holds(url: str) -> Iterator[Finding]:
    holds = find_holds(url)
    if holds is None:
        return
    if holds.trouble:
        yield ill(
            "journal.holds", holds.trouble, "put a copy of the record back, or move it away and set the holds again"
        )
        return
    if count := sum(1 for hold in holds.all() if hold.is_open):
        what = f"{counted(count, 'hold')} open: what is held is never dropped"
        yield worry("journal.holds", what, "watch the disk; stigmergy log hold list", holds=count)


async def _reach_store(url: str) -> None:
    store = await open_store(url, SystemClock())
    try:
        await store.find_objects("doctor")
    finally:
        await store.close()


def check_archive(place: str) -> Finding:
    """The folder or store that log goes into before it is dropped."""
    if "://" in place:
        try:
            asyncio.run(_reach_store(place))
        except (ConfigError, StoreError) as error:
            return ill("archive.reachable", str(error), "nothing is dropped until it is there; docs/logs.md")
        return well("archive.reachable", f"{shown(place)} answers")
    folder = there = Path(place)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = f"{folder} cannot be written, so nothing will be dropped"
        return ill("archive.writable", what, "mount it, or give this user the right to")
    free = free_bytes(there)
    return well("archive.writable", f"{folder}, {shown_bytes(free)} free", free_bytes=free)


# Checks of the broker: its name resolves, its port accepts a connection; and the state of a NATS cluster. It shows no
# password and changes nothing.

CONNECT_S_MAX = 3.0
PORTS = {"mqtt": 1883, "mqtts": 8883, "nats": 4222, "tls": 4222, "redis": 6379, "kafka": 9092}
INSIDE = ("memory",)
CLUSTERED = ("nats", "tls")
ENCRYPTED = {"mqtt": "mqtts", "nats": "tls"}
"""What a scheme is called with TLS."""


def check_bus(url: str | None) -> Iterator[Finding]:
    """The bus of the configuration."""
    if url is None:
        yield well("bus.configured", "no bus is configured; agents here need none")
        return
    scheme = url.partition(":")[0]
    if scheme in INSIDE:
        yield well("bus.configured", f"a bus inside this process ({scheme}:)")
        return
    for one in _servers(url):
        host, port, secret = _target(one, scheme)
        if not host or port is None:
            what = f"the URL of the bus ({scheme}:…) names no host and port"
            yield ill("bus.configured", what, "write it like mqtt://gateway:1883 under [fleet] in stigmergy.toml")
            return
        if scheme in ENCRYPTED and secret and host not in ("localhost", "127.0.0.1", "::1"):
            what = f"a password goes to {host} as it is, for everybody on the way to read"
            yield worry("bus.secrecy", what, f"use {ENCRYPTED[scheme]}:// with TLS")
        yield check_reachable(host, port)


def check_clusters(urls: Sequence[str | None]) -> Iterator[Finding]:
    """How the servers behind these URLs stand, each asked about itself; those of NATS only, and each cluster once."""
    from stigmergy.nats.servers import look_once, parse_address
    from stigmergy.nats.servers.status import check

    seen: list[tuple[str, ...]] = []
    for url in urls:
        if url is None or url.partition("://")[0] not in CLUSTERED:
            continue
        try:
            # What else the URL says is for the adapter that it was written for.
            address = parse_address(url, tuple(dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))))
            if address.servers in seen:
                continue
            seen.append(address.servers)
            findings = check(look_once(address, ""))
        except StigmergyError as error:
            yield ill("cluster.servers", str(error), "start the servers, or fix the URL in stigmergy.toml")
            continue
        for one in findings:
            yield Finding(f"cluster.{one.check}", one.level, one.what, one.remedy, {"at": address.shown})


def _servers(url: str) -> list[str]:
    """A URL for each server: those of one cluster on NATS are named in one, with commas."""
    scheme, _, rest = url.partition("://")
    if scheme not in CLUSTERED:
        return [url]
    login, at, hosts = rest.partition("?")[0].partition("/")[0].rpartition("@")
    return [f"{scheme}://{login}{at}{host}" for host in hosts.split(",") if host] or [url]


def _target(url: str, scheme: str) -> tuple[str | None, int | None, bool]:
    """Host, port, and whether there is a password in the URL."""
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or PORTS.get(scheme), parts.password is not None
    except ValueError:
        return None, None, False


def check_reachable(host: str, port: int) -> Finding:
    """Looks the name up and connects."""
    began_s = time.monotonic()
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S_MAX):
            took_s = time.monotonic() - began_s
    except socket.gaierror:
        return ill("bus.reachable", f"{host} has no address here", "fix the name, or the name service", at=where)
    except TimeoutError:
        remedy = "look at firewalls and routes; agents go on without it, and what they publish waits"
        return ill("bus.reachable", f"{where} does not answer within {CONNECT_S_MAX:.0f} s", remedy, at=where)
    except OSError as error:
        remedy = "start the broker there, or fix the address; agents go on without it, and their publications wait"
        return ill("bus.reachable", f"{where}: {error.strerror or error}", remedy, at=where)
    return well("bus.reachable", f"{where} answers, in {took_s * 1e3:.0f} ms", at=where, seconds=round(took_s, 4))
