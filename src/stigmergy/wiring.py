"""The composition root: puts a fleet together with a journal, a key and clocks. The only place that names adapters."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any

from stigmergy.adapters.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.adapters.keyfile import new_private_key, read_private_key, write_private_key
from stigmergy.adapters.system import SystemClock, SystemEntropy
from stigmergy.config import Config, find_config
from stigmergy.core.errors import ConfigError
from stigmergy.ports.journal import Journal, JournalIdentity
from stigmergy.ports.trust import Signer
from stigmergy.runtime.declaration import Declaration
from stigmergy.runtime.host import Host
from stigmergy.runtime.live import Live
from stigmergy.runtime.settings import Settings

JOURNALS = "stigmergy.journals"
"""The entry point group where adapters register: the name is the scheme of the URL, the value opens it."""
INCARNATION_BYTES = 6


class Fleet(Declaration):
    """A fleet of agents. Declare it once; run it embedded, from the command line, or in the simulator.

    fleet = Fleet("delivery", agents=[Drone])

    async with fleet.running() as live:
        await live.send("Drone/D-17", StartMission(mission="M1"))
    """

    def running(
        self, *, journal: str | None = None, key: str | Path | None = None, settings: Settings | None = None
    ) -> Running:
        """Runs the fleet in this program, on a SQLite file and a key beside it unless told otherwise.

        The order of precedence: these arguments, `stigmergy.toml` in the current directory, `NAME.db` and `NAME.key`.
        """
        return Running(self, find_config(Path.cwd()), journal, None if key is None else Path(key), settings)


class Running:
    """An async context manager: on entering the fleet recovers and runs, on leaving it drains and closes."""

    def __init__(
        self, fleet: Declaration, config: Config, journal: str | None, key: Path | None, settings: Settings | None
    ) -> None:
        self._fleet = fleet
        self._url = journal or config.fleet.journal or f"sqlite:{fleet.name}.db"
        self._key = key or (Path(config.fleet.key) if config.fleet.key else default_key_path(fleet.name, self._url))
        self._settings = settings or config.settings
        self._host: Host | None = None

    async def __aenter__(self) -> Live:
        entropy = SystemEntropy()
        signer = load_signer(self._key, create=True)
        journal = open_journal(self._url, self._fleet.name, self._fleet.shards)
        try:
            host = Host(self._fleet, journal, signer, Ed25519Verifier(), SystemClock(), self._settings)
            recovered = await host.start()
        except BaseException:
            await journal.close()
            raise
        self._host = host
        return Live(host, entropy, recovered)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._host is not None:
            await self._host.stop()


def open_journal(url: str, fleet: str, shards: int, **options: Any) -> Journal:
    """Opens the journal that a URL names, through the adapter registered for its scheme."""
    scheme, colon, _ = url.partition(":")
    found = {entry.name: entry for entry in entry_points(group=JOURNALS)}
    if not colon or scheme not in found:
        known = ", ".join(f"{name}:" for name in sorted(found))
        raise ConfigError(f"journal {url!r}: no adapter for {scheme!r}; there are {known}, for example sqlite:fleet.db")
    incarnation = int.from_bytes(SystemEntropy().token(INCARNATION_BYTES), "big") + 1
    identity = JournalIdentity(fleet=fleet, shards=shards, incarnation=incarnation)
    journal: Journal = found[scheme].load()(url, identity, **options)
    return journal


def default_key_path(fleet: str, url: str) -> Path | None:
    """The key file that belongs to a journal: beside it; none for a journal in memory."""
    if url.startswith("sqlite:"):
        return Path(url.removeprefix("sqlite:")).with_suffix(".key")
    return None if url.startswith("memory:") else Path(f"{fleet}.key")


def load_signer(path: Path | None, *, create: bool) -> Signer:
    """The signer of a node from its key file, made if there is none yet; without a path, a key for this run only."""
    entropy = SystemEntropy()
    if path is None:
        return Ed25519Signer(new_private_key(entropy).seed)
    if create and not path.exists():
        write_private_key(path, new_private_key(entropy))
    return Ed25519Signer(read_private_key(path).seed)
