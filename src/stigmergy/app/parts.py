"""The journal of several processes: a folder with a part for each of them, and their sockets beside the parts.

    fleet.db/1-of-2.db          the part of the first of two processes; in segments: fleet/1-of-2/
    fleet.db/1-of-2.db.sock     its control socket
    fleet.db/1-of-2.tells       its socket for the other processes

The names say for how many processes the folder was made; that is fixed, because each part holds its own shards.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

from stigmergy.base.errors import ConfigError
from stigmergy.network.shares import Share, part_name
from stigmergy.network.unix_peers import SocketPeerNetwork

SQLITE = "sqlite:"
SEGMENTS = "segments:"
_ENDINGS = {SQLITE: ".db", SEGMENTS: ""}
_PART = re.compile(r"([1-9]\d{0,2})-of-([1-9]\d{0,2})(\.db)?(?:-mark)?")
"""A part, or its mark: also where a part was taken away, the folder says for how many processes it was made."""


def journal_path(url: str) -> Path | None:
    """The file or folder of a journal; None for one that is neither."""
    for scheme in _ENDINGS:
        if url.startswith(scheme):
            return Path(url.removeprefix(scheme))
    return None


def is_there(url: str) -> bool:
    """Whether there is anything of a journal on a disk: a file that is not empty, or a folder with an identity."""
    path = journal_path(url)
    if path is None:
        return False
    try:
        return (path / "identity").exists() if url.startswith(SEGMENTS) else path.stat().st_size > 0
    except OSError:
        return False


def whole_url(url: str) -> str:
    """The URL of a journal on a disk with its whole path, so that it means the same from everywhere."""
    scheme, path = _split(url)
    return f"{scheme}{path.resolve()}"


def left_beside(url: str) -> list[Path]:
    """What is left beside a journal that says that it was there."""
    _, path = _split(url)
    return [beside for ending in ("-wal", "-mark") if (beside := path.with_name(f"{path.name}{ending}")).exists()]


def shown_url(url: str) -> str:
    """A journal's URL for people: what it says before an @ may be a password."""
    scheme, separator, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return f"{scheme}{separator}{hosts.rpartition('@')[2]}{slash}{path}" if separator else url


def part_url(url: str, share: Share) -> str:
    """Where a process keeps its part of a journal."""
    scheme, folder = _split(url)
    return f"{scheme}{folder / share.name}{_ENDINGS[scheme]}"


def peer_network_of(url: str, share: Share) -> SocketPeerNetwork:
    """The sockets of all processes of a journal, as one of them sees them."""
    _, folder = _split(url)
    return SocketPeerNetwork(share.process, lambda process: folder / f"{part_name(process, share.processes)}.tells")


def processes_of(url: str) -> int:
    """For how many processes a journal was made; 0 if it is not there, or not in parts."""
    path = journal_path(url)
    if path is None or not path.is_dir():
        return 0
    found = sorted({int(match[2]) for one in path.iterdir() if (match := _PART.fullmatch(one.name))})
    if len(found) > 1:
        raise ConfigError(
            f"{path}: has parts for {found[0]} and for {found[1]} processes; whoever put them together knows which "
            "belong here: move the others away"
        )
    return found[0] if found else 0


def part_urls(url: str) -> list[str]:
    """The parts of a journal, in order; none of one that is not in parts. Raises ConfigError if one is missing."""
    processes = processes_of(url)
    if not processes:
        return []
    scheme, folder = _split(url)
    paths = [folder / f"{part_name(process, processes)}{_ENDINGS[scheme]}" for process in range(1, processes + 1)]
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: this part of the journal is not there; start the node once, or restore a copy")
    return [f"{scheme}{path}" for path in paths]


def is_in_parts(path: Path) -> str | None:
    """The scheme of a journal in parts at this path; None if there is no such."""
    for one in path.iterdir() if path.is_dir() else ():
        if _PART.fullmatch(one.name):
            return SQLITE if any(path.glob("*-of-*.db")) else SEGMENTS
    return None


def check_whole(url: str) -> None:
    """Refuses a journal of several processes where one process is to run all of it."""
    if processes := processes_of(url):
        raise ConfigError(
            f"{journal_path(url)}: the journal of {processes} processes; run it with --processes {processes}, or "
            f"processes = {processes} under [fleet] in stigmergy.toml"
        )


def check_single(url: str) -> None:
    """Refuses a journal of several processes where only one of its parts can be looked at."""
    if processes := processes_of(url):
        raise ConfigError(
            f"{journal_path(url)}: the journal of {processes} processes, and this looks at one part at a time; name "
            f"each of them, beginning with --journal {_first_part(url, processes)}"
        )


def check_parts(url: str, processes: int) -> None:
    """Refuses to run a journal with another number of processes than it was made for."""
    path = journal_path(url)
    if path is None:
        raise ConfigError(
            f"journal {url!r}: several processes need a journal on a disk, like sqlite:fleet.db or segments:fleet"
        )
    made_for = processes_of(url)
    if made_for and made_for != processes:
        raise ConfigError(
            f"{path}: made for {made_for} processes, not for {processes}; each of them has its own shards, and that is "
            f"fixed: run it with --processes {made_for}, or name another --journal"
        )
    if not made_for and path.exists() and (path.is_file() or any(path.iterdir())):
        raise ConfigError(
            f"{path}: made by one process, which keeps all shards in it; run it with --processes 1, or name another "
            "--journal"
        )


def make_folder(url: str) -> None:
    """Makes the folder of the parts, for its owner only."""
    _, folder = _split(url)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}); name another --journal") from None


def _first_part(url: str, processes: int) -> str:
    scheme, folder = _split(url)
    return f"{scheme}{folder / part_name(1, processes)}{_ENDINGS[scheme]}"


def _split(url: str) -> tuple[str, Path]:
    path = journal_path(url)
    if path is None:
        raise ConfigError(f"journal {url!r}: no journal on a disk; give one like sqlite:fleet.db or segments:fleet")
    return url.partition(":")[0] + ":", path


# The socket between a supervisor and a process it has started: reports go up, and the end of one ends the other.
#
# Each side notices the death of the other, whatever its cause, because the kernel then closes the socket. A process
# whose supervisor is gone is stopped as by SIGTERM; if that does not help, it kills itself, so that no process is left
# unsupervised.

ORPHAN_S_MAX = 30.0
"""So long a process whose supervisor is gone may take to finish what it has taken."""
READ_BYTES = 4096


class Lifeline:
    """The end of the socket that a started process holds."""

    def __init__(self, descriptor: int, *, orphan_s_max: float = ORPHAN_S_MAX) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._orphan_s_max = orphan_s_max

    def watch(self) -> None:
        """From now on the process does not outlive its supervisor. In a thread, because the event loop may hang."""
        threading.Thread(target=self._wait, name="stigmergy-lifeline", daemon=True).start()

    def report(self, line: bytes) -> None:
        """Tells the supervisor something, one line; nobody hears it who is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(line)

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(READ_BYTES):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._orphan_s_max)
        os.kill(os.getpid(), signal.SIGKILL)


def make_lifeline() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end, and the one to hand to the process that it starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    return ours, theirs


def keep_to_one_core(number: int, of: int) -> int | None:
    """Keeps this process to a core of its own, if there are enough for all; which one. No more than a hint."""
    with contextlib.suppress(OSError, AttributeError):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= of:
            os.sched_setaffinity(0, {cores[number - 1]})
            return cores[number - 1]
    return None
