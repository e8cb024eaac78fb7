"""Bearer tokens: who may ask what over HTTP and gRPC. They are kept in a file, as hashes only.

    stg_drill-rig_k3Jx…        the prefix, the name of the token, and 256 random bits

A token has scopes: `read`, `command:Drone` or `command:*`, `observe`, `operate`. The file is replaced as a whole, has
mode 0600, and is read again when it has changed: a revocation counts from the next request on, and open streams end
within a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError, TrustError

PREFIX = "stg"
SECRET_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
SCOPE = re.compile(r"read|observe|operate|command:(?:\*|[^\W\d]\w*)")
TOKENS_MAX = 1_000
FILE_BYTES_MAX = 1024 * 1024
READ, OBSERVE, OPERATE, COMMAND_ALL = "read", "observe", "operate", "command:*"


class Token(Struct, frozen=True):
    """What the file says of a token. The token itself is not kept."""

    name: str
    sha256: str
    scopes: tuple[str, ...]
    created_s: int
    expires_s: int
    revoked_s: int | None = None

    def is_valid(self, now_s: float) -> bool:
        """Whether it counts at this time."""
        return self.revoked_s is None and now_s < self.expires_s


class TokenFile(Struct, frozen=True):
    """The content of the file."""

    v: int
    tokens: list[Token] = []


class Caller(Struct, frozen=True):
    """Who asks, and what it may do."""

    name: str
    scopes: tuple[str, ...]
    token: Token | None = None

    def shown_as(self, how: str) -> str:
        """How a node is told of it, for a policy."""
        return how if self.token is None else f"{how} {self.token.name}"

    def may(self, scope: str) -> bool:
        """Whether it has this scope, such as `read` or `command:Drone`."""
        return scope in self.scopes or (scope.startswith("command:") and COMMAND_ALL in self.scopes)


ANONYMOUS = (READ, OBSERVE, COMMAND_ALL)
"""What everybody may do who reaches a loopback address where there is no token file."""


def tokens_path(journal: Path | None, fleet: str) -> Path:
    """Where the tokens of a node are: beside its journal; of a fleet on workers, in the current folder."""
    return Path(f"{fleet}.tokens") if journal is None else Path(f"{journal}.tokens")


def how_to_create(path: Path) -> str:
    """The command that makes a token in this file."""
    return f"stigmergy token create --tokens {shlex.quote(str(path))} --scope read NAME"


class Tokens:
    """The tokens in one file, as it is now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._by_name: dict[str, Token] = {}
        self._read()

    @property
    def is_there(self) -> bool:
        """Whether there is a file: then everybody needs a token."""
        self._read()
        return self._seen is not None

    def all(self) -> list[Token]:
        """All tokens, also those that have expired or were revoked."""
        self._read()
        return list(self._by_name.values())

    def find(self, text: str, now_s: float) -> Token | None:
        """The token that this text is, if it counts now. Takes the same time whether the secret is nearly right or
        not; whether a name exists is no secret."""
        self._read()
        parts = text.split("_", 2)
        token = self._by_name.get(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else None
        is_right = hmac.compare_digest(_hashed(text), token.sha256 if token else _hashed(""))
        return token if token is not None and is_right and token.is_valid(now_s) else None

    def is_still_valid(self, token: Token, now_s: float) -> bool:
        """Whether a token that was found before counts now."""
        self._read()
        found = self._by_name.get(token.name)
        return found is not None and found.sha256 == token.sha256 and found.is_valid(now_s)

    def create(self, name: str, scopes: tuple[str, ...], for_s: int, now_s: float) -> str:
        """Makes a token and returns its text, which nobody can find out later. Raises ConfigError."""
        if NAME.fullmatch(name) is None:
            raise ConfigError(f"{name!r} is no name for a token; use 1 to 64 letters, digits, dots and dashes")
        for scope in scopes:
            if SCOPE.fullmatch(scope) is None:
                raise ConfigError(f"scope {scope!r}: give read, observe, operate, command:KIND or command:*")
        if not scopes:
            raise ConfigError("a token without a scope may do nothing; give --scope read, or more")
        # A cluster may get its tokens before its folder is there: beyond loopback it is not started without.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with self._alone():
            old = self._by_name.get(name)
            if old is not None and old.is_valid(now_s):
                raise ConfigError(f"there is a token {name!r} already; revoke it first, or choose another name")
            if len(self._by_name) >= TOKENS_MAX and old is None:
                raise ConfigError(f"{self.path} has {TOKENS_MAX} tokens already; use the name of a revoked one again")
            text = f"{PREFIX}_{name}_{secrets.token_urlsafe(SECRET_BYTES)}"
            token = Token(name, _hashed(text), scopes, int(now_s), int(now_s) + for_s)
            self._write({**self._by_name, name: token})
        return text

    def revoke(self, name: str, now_s: float) -> Token:
        """Revokes a token. Raises ConfigError if there is none of this name."""
        with self._alone():
            token = self._by_name.get(name)
            if token is None:
                raise ConfigError(f"there is no token {name!r} in {self.path}; see stigmergy token list")
            revoked = token if token.revoked_s is not None else structs.replace(token, revoked_s=int(now_s))
            self._write({**self._by_name, name: revoked})
        return revoked

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Reads the file, and lets nobody else change it meanwhile."""
        try:
            folder = os.open(self.path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"the folder of {self.path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self._read()
            yield
        finally:
            os.close(folder)

    def _read(self) -> None:
        """Reads the file if it has changed. A file that cannot be read lets nobody in: TrustError."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            # Whoever had a token has none now; nobody gets in as anonymous because a file was taken away.
            self._by_name = {}
            if self._seen is not None:
                raise TrustError(f"the token file {self.path} is gone; put it back, or start again") from None
            return
        except OSError as error:
            raise TrustError(f"the token file {self.path} cannot be read: {error.strerror}") from None
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if seen == self._seen:
            return
        try:
            content = self.path.read_bytes()
            found = msgspec.json.decode(content[:FILE_BYTES_MAX], type=TokenFile)
        except (OSError, msgspec.DecodeError) as error:
            self._seen, self._by_name = (0, 0, 0), {}
            raise TrustError(f"the token file {self.path} cannot be read: {error}") from None
        if found.v != 1:
            raise TrustError(f"the token file {self.path} has version {found.v}, this program reads 1; update it")
        self._by_name = {token.name: token for token in found.tokens}
        self._seen = seen

    def _write(self, tokens: dict[str, Token]) -> None:
        content = msgspec.json.format(msgspec.json.encode(TokenFile(1, list(tokens.values()))), indent=1)
        beside = self.path.with_name(f"{self.path.name}.new-{os.getpid()}-{time.monotonic_ns()}")
        try:
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, content)
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(beside, self.path)
        except OSError as error:
            raise ConfigError(f"the token file {self.path} cannot be written: {error.strerror}") from None
        self._seen = None
        self._read()


def _hashed(text: str) -> str:
    # A token has 256 random bits: nobody guesses it from a fast hash, and a slow one would be paid at each request.
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
