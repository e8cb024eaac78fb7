"""Unix sockets as files, for their owner only: shared by the control endpoint and the peer port.

A file has mode 0600: only who may write to the journal may talk to the node. A file that a dead process left behind is
replaced; one that somebody answers on is respected. A path that is too long for a socket address is reached through its
folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from stigmergy.base.errors import ConfigError, JournalLocked, NotRunning, StigmergyError

_ADDRESS_BYTES_MAX = 107
_PROBE_S = 1.0


def answers_at(path: Path) -> bool:
    """Whether a process listens on this socket."""
    try:
        connected(path, _PROBE_S).close()
    except StigmergyError:
        return False
    return True


def bound(path: Path, backlog: int, remedy: str) -> socket.socket:
    """A listening socket at this path, for its owner only; `remedy` says what to do where it cannot be."""
    try:
        _make_way(path, remedy)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # On Linux the file gets the mode of the socket, so that it is never open to others, not even for a moment.
            os.fchmod(listening.fileno(), 0o600)
            with _short(path) as address:
                listening.bind(address)
            os.chmod(path, 0o600)
            listening.listen(backlog)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(f"the control socket {str(path)!a} cannot be made ({reason(error)}); {remedy}") from None
    return listening


def _make_way(path: Path, remedy: str) -> None:
    """Removes the socket of a dead process; refuses to take the place of a living one, or of something else."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"{str(path)!a} is there and is no socket; {remedy}")
    if answers_at(path):
        raise JournalLocked(f"{str(path)!a}: another node answers there; stop it first, or {remedy}")
    os.unlink(path)


def connected(path: Path, timeout_s: float) -> socket.socket:
    """A connection to who listens at this path; with a timeout of 0 it never waits. Raises NotRunning."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_s)
        with _short(path) as address:
            connection.connect(address)
    except PermissionError:
        connection.close()
        raise ConfigError(f"{str(path)!a}: the node belongs to somebody else; run this as its owner") from None
    except OSError as error:
        connection.close()
        raise NotRunning(f"no node answers at {str(path)!a} ({reason(error)})") from None
    return connection


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path in a form that fits the address of a socket."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        address = f"/proc/self/fd/{folder}/{path.name}"
        if len(os.fsencode(address)) > _ADDRESS_BYTES_MAX:
            raise ConfigError(
                f"{path.name!a} is too long a name for a socket; give a shorter one with --socket, "
                f"{_ADDRESS_BYTES_MAX} bytes at most"
            )
        yield address
    finally:
        os.close(folder)


def reason(error: OSError) -> str:
    """What the operating system says, for people."""
    return error.strerror or str(error)
