"""Reads `stigmergy.toml`: where a fleet keeps its journal and its key, and its bounds. No file is needed.

    [fleet]
    module = "drone:fleet"             # MODULE:FLEET, for the command line; imported from the file's folder
    journal = "sqlite:fleet.db"        # sqlite:path · segments:folder · memory:
    key = "fleet.key"
    trust = ["old.key"]                # keys whose end of the log is believed beside our own; after a rotation
    identity = "north"                 # the folder with our certificate, for links with TLS; see docs/certificates.md
    agents = ["Drone/D-17"]            # whom this node runs, also "Drone/D-1*" or "Drone/*"; else everybody
    bus = "mqtt://gateway:1883"        # who is told what agents publish, and who may send commands
    site = "north"                     # where this is; else "local"
    node = "gateway"                   # what this node is called there; else the name of the machine
    uplink = { only = ["Alert"] }      # what of this node's log is sent to the collector there
    uplink_to = "nats-hub://127.0.0.1:4222"      # by another bus than the one above
    collect_from = "nats-sites://hub:4222"       # a further bus, which uplinks of whole sites come in by
    rings = ["telemetry.ring"]         # what producers on this machine put there is taken
    mesh = "udp://0.0.0.0:7946?peers=north@10.0.0.7:7946"    # how shared fields gossip without a bus
    ledger = "sqlite:ledger.db"        # who orders claims, for all processes of this machine
    peers = ["north.pub"]              # keys whose changes and claims are taken; else those that are heard first
    copies = ["nats://hub:4222"]       # stores that the journal is copied to: nats://… · folder:path
    blobs = "nats://hub:4222"          # where large payloads are kept; else in a folder beside the journal
    models = "folder:models"           # where the bundles of models are; else their rules answer
    model_keys = ["ml.pub"]            # keys whose bundles are believed
    views = "sqlite:fleet.views"       # where the rows of views are kept; else in a file beside the journal
    metrics = ":9100"                  # where this node tells Prometheus what it measures
    collects = true                    # takes what the uplinks of this fleet's other nodes at this site bring

    [log]
    level = "warn"                     # the least that is written to stderr; see docs/logging.md
    codes = { bus-down = { sample = 0.1 } }      # by the code of a message

    [settings]
    batch_events_max = 1000
    [settings.retention]
    keep_s = 604800.0

Relative paths are relative to the file. A key that does not exist here is an error, not a silent default.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError
from stigmergy.diagnostics.lines import LogConfig
from stigmergy.node.settings import Settings
from stigmergy.pki.identity import signing_key, with_identity
from stigmergy.uplink.rules import UplinkRule

CONFIG_FILE = "stigmergy.toml"
_URLS = ("journal", "bus", "ledger", "uplink_to", "collect_from", "blobs", "views", "models")
CONFIG_BYTES_MAX = 1024 * 1024
_WRITTEN_KEY = re.compile(r"stigmergy-.*|[0-9a-fA-F]{64}")
"""A public key itself, where any other text is the path of its file."""


class FleetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a fleet runs. What is not given has a default that depends on the fleet's name."""

    journal: str | None = None
    key: str | None = None
    module: str | None = None
    trust: tuple[str, ...] = ()
    """Public keys, as files, lines or hex digits, whose end of the log is believed beside our own: after a rotation."""
    agents: tuple[str, ...] = ()
    """Addresses of the agents that this node runs, `*` for any characters of a name; without any, it runs all."""
    bus: str | None = None
    site: str | None = None
    node: str | None = None
    uplink: UplinkRule | None = None
    """What of the journal is sent on; nothing without it."""
    processes: int = 1
    """Of earlier versions; only 1 is left, and workers are the way to more cores."""
    rings: tuple[str, ...] = ()
    """Paths of the rings that it is fed from."""
    mesh: str | None = None
    """How shared fields find their peers; over the bus, if there is one and nothing is said here."""
    ledger: str | None = None
    """Who orders what agents claim; without one, claims are denied."""
    peers: tuple[str, ...] = ()
    """Public keys, as files, lines or hex digits, of the nodes whose changes and claims are taken."""
    collects: bool = False
    """Whether this node takes what the uplinks of others at this site bring, for agents of the same address."""
    uplink_to: str | None = None
    """The bus that the uplink leaves by; the node's own without it."""
    collect_from: str | None = None
    """A further bus, from which the uplinks of all sites are taken."""
    copies: tuple[str, ...] | str = ()
    """Stores that the journal is copied to, to be restored from when its disk is lost."""
    blobs: str | None = None
    """The store of large payloads; a folder beside the journal, if nothing is said here."""
    views: str | None = None
    """Where the rows of the fleet's views are kept."""
    models: str | None = None
    """Where the bundles of models are; without it their rules answer."""
    model_keys: tuple[str, ...] = ()
    """Public keys, as files, lines or hex digits, whose bundles are believed."""
    policy: str | None = None
    """Where the fleet's policy is, which commands pass before agents decide; without it nobody is asked."""
    policy_keys: tuple[str, ...] = ()
    """The same for policies."""
    identity: str | None = None
    """The folder of this node's certificate, which links with TLS show unless their URL names other files."""
    metrics: str | None = None
    """HOST:PORT of the page for Prometheus; none without it."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration file."""

    fleet: FleetConfig = FleetConfig()
    settings: Settings | None = None
    log: LogConfig = LogConfig()


def read_config(path: Path) -> Config:
    """Reads a configuration file; an error names the file and the place in it."""
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {CONFIG_BYTES_MAX} bytes; this is no configuration of ours")
        config = msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; see docs/configuration.md for what may be set") from None
    if unknown := config.log.unknown_codes():
        raise ConfigError(f"{path}: {unknown[0]!r} under [log.codes] is no code of a message; see docs/logging.md")
    settings = _settings_beside(config.settings, path.parent)
    beside = structs.replace(config, fleet=_beside(config.fleet, path.parent), settings=settings)
    return with_identity_in(beside, None)


def find_config(directory: Path) -> Config:
    """The configuration in this directory, or the defaults."""
    path = directory / CONFIG_FILE
    return read_config(path) if path.exists() else Config()


def _beside(place: FleetConfig, folder: Path) -> FleetConfig:
    journal, key = place.journal, None if place.key is None else str(folder / place.key)
    for scheme in ("sqlite:", "segments:"):
        if journal is not None and journal.startswith(scheme):
            journal = f"{scheme}{folder / journal.removeprefix(scheme)}"
    copies = (place.copies,) if isinstance(place.copies, str) else place.copies
    ledger = None if place.ledger is None else _file_beside(place.ledger, folder)
    return structs.replace(
        place,
        journal=journal,
        key=key,
        trust=_keys_beside(place.trust, folder),
        peers=_keys_beside(place.peers, folder),
        identity=None if place.identity is None else str(folder / place.identity),
        models=None if place.models is None else _store_beside(place.models, folder),
        model_keys=_keys_beside(place.model_keys, folder),
        policy=None if place.policy is None else _store_beside(place.policy, folder),
        policy_keys=_keys_beside(place.policy_keys, folder),
        rings=tuple(str(folder / ring) for ring in place.rings),
        ledger=ledger,
        copies=tuple(_store_beside(url, folder) for url in copies),
        views=None if place.views is None else _file_beside(place.views, folder),
        blobs=None if place.blobs is None else _store_beside(place.blobs, folder),
    )


def with_identity_in(config: Config, folder: str | Path | None) -> Config:
    """The same, with this identity on every link with TLS; what it says itself holds without one. The log is signed
    with the key of the identity, if that has one and no other is named."""
    place, folder = config.fleet, folder or config.fleet.identity
    if folder is None:
        return config
    own = signing_key(Path(folder))
    named = {name: value for name in _URLS if (value := getattr(place, name)) is not None}
    copies = (place.copies,) if isinstance(place.copies, str) else place.copies
    return structs.replace(
        config,
        fleet=structs.replace(
            place,
            identity=str(folder),
            key=place.key or (None if own is None else str(own)),
            copies=tuple(with_identity(url, folder) for url in copies),
            **{name: with_identity(url, folder) for name, url in named.items()},
        ),
    )


def _file_beside(url: str, folder: Path) -> str:
    return f"sqlite:{folder / url.removeprefix('sqlite:')}" if url.startswith("sqlite:") else url


def _store_beside(url: str, folder: Path) -> str:
    return f"folder:{folder / url.removeprefix('folder:')}" if url.startswith("folder:") else url


def _keys_beside(keys: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    return tuple(text if _WRITTEN_KEY.fullmatch(text) else str(folder / text) for text in keys)


def _settings_beside(settings: Settings | None, folder: Path) -> Settings | None:
    """The archive is a folder relative to the file as well, unless it is the URL of a store."""
    if settings is None:
        return None
    bus = structs.replace(settings.bus, client_keys=_keys_beside(settings.bus.client_keys, folder))
    settings = structs.replace(settings, bus=bus)
    if settings.retention.archive is None or "://" in settings.retention.archive:
        return settings
    retention = structs.replace(settings.retention, archive=str(folder / settings.retention.archive))
    return structs.replace(settings, retention=retention)
