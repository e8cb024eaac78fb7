"""What signs and verifies on the buses of one node or client, and the file with the keys that it knows.

    fleet.db-known         beside the journal; for workers `fleet.key-known`, beside their key

One line of JSON for each node: its name, its key, and the agents that it runs by its own words. It may be edited while
the node does not run: another key, or no line, and then the next key that is heard under that name is believed. A file
that cannot be read is an error: nothing is believed anew in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import structs

from stigmergy.agents.messages import SECOND_NS
from stigmergy.app.keyring import read_key
from stigmergy.app.node_config import NodeConfig, shown
from stigmergy.app.parts import journal_path
from stigmergy.base.errors import ConfigError, TrustError
from stigmergy.base.system import SystemClock
from stigmergy.base.trust import Signer
from stigmergy.bus.port import Bus
from stigmergy.bus.signatures import SIGNER_BYTES_MAX, Identity
from stigmergy.bus.topics import escape
from stigmergy.diagnostics.logger import Log
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.network.bus_keys import CLIENTS, BusKeys, KeptNode, signer_of
from stigmergy.network.signed_bus import SignedBus
from stigmergy.node.settings import OFF, REQUIRE, BusSettings

_LOG = Log("signatures")
_lines = msgspec.json.Decoder(KeptNode)


class KnownNodes:
    """The file. Lines are added; of a node with several the last one counts."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nothing is remembered."""
        self._path = path
        self._failed = False
        self.nodes: dict[str, KeptNode] = {}
        content = b""
        if path is not None and path.exists():
            try:
                content = path.read_bytes()
            except OSError as error:
                raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        self._whole_bytes: int | None = None if content.endswith(b"\n") else content.rfind(b"\n") + 1
        """Where the last line was cut, because the power went while it was written."""
        for number, line in enumerate(content[: self._whole_bytes].splitlines(), start=1):
            try:
                node = _lines.decode(line)
                node = structs.replace(node, key=read_key(node.key).key.hex())
            except (msgspec.DecodeError, ConfigError, TrustError) as error:
                raise TrustError(
                    f"{path}, line {number}: {error}; this file has the keys of the nodes that this one has heard. "
                    "Correct the line, or remove it: then the next key under that name is believed"
                ) from None
            self.nodes[node.name] = node

    def add(self, node: KeptNode) -> None:
        """Remembers it. Where that cannot be written the node runs, and says so."""
        if self.nodes.get(node.name) == node:
            return
        self.nodes[node.name] = node
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                if self._whole_bytes is not None:
                    file.truncate(self._whole_bytes)
                    self._whole_bytes = None
                file.write(msgspec.json.encode(node) + b"\n")
        except OSError as error:
            if not self._failed:
                _LOG.say("start-notice", f"{self._path}: cannot be written ({error.strerror}): keys are not remembered")
            self._failed = True


class Signing:
    """Wraps the buses of a node or client."""

    def __init__(self, me: Identity | None, keys: BusKeys | None, now_s: Callable[[], float]) -> None:
        self._me = me
        self._keys = keys
        self._now_s = now_s

    def wrap(self, bus: Bus, url: str) -> SignedBus:
        """The bus, signed and verified."""
        return SignedBus(bus, shown(url.partition("?")[0]), self._me, self._keys, self._now_s)


NOTHING_SIGNED = Signing(None, None, float)
"""Of a node without a bus."""


def journal_signing(
    node_config: NodeConfig, fleet: str, settings: BusSettings, signer: Signer, url: str, *, is_passing: bool
) -> Signing:
    """For a node with a journal, which remembers keys beside it."""
    path, clock = journal_path(url), SystemClock()
    known = KnownNodes(None if path is None else path.with_name(f"{path.name}-known"))

    def now_s() -> float:
        return clock.monotonic_ns() / SECOND_NS

    return node_signing(node_config, fleet, settings, signer, now_s, known=known, is_passing=is_passing)


def node_signing(
    node_config: NodeConfig,
    fleet: str,
    settings: BusSettings,
    signer: Signer | None,
    now_s: Callable[[], float],
    *,
    known: KnownNodes,
    is_passing: bool = False,
) -> Signing:
    """For a node. `is_passing` says that its own key ends with the process. Without a key it signs nothing."""
    if settings.signatures == OFF:
        return Signing(None, None, now_s)
    name = signer_of(fleet, node_config.site or "", node_config.node or "")
    trusted = [read_key(text).key for text in node_config.peers]
    if settings.signatures == REQUIRE and (not trusted or signer is None):
        raise ConfigError(
            f'signatures = "{REQUIRE}" under [settings.bus] needs to know whose: list the public keys of the other '
            "nodes in peers under [fleet], and those of clients in client_keys under [settings.bus], and give this one "
            "a key; stigmergy keys show prints public keys"
        )
    me = None if signer is None else Identity(_checked(name), signer, is_passing)
    keys = BusKeys(
        name,
        b"" if signer is None else signer.public_key,
        Ed25519Verifier(),
        now_s,
        trusted=trusted,
        clients=_keys(settings.client_keys),
        requires=settings.signatures == REQUIRE,
        gone_s=settings.presence_gone_s,
        kept=tuple(known.nodes.values()),
        keep=known.add,
    )
    return Signing(me, keys, now_s)


def signs_as(
    site: str, node: str, signer: Signer, now_s: Callable[[], float]
) -> Callable[[str, BusSettings, Bus], SignedBus]:
    """For a simulated node, of which only the world remembers what a real one keeps in a file: over all its lives."""
    known = KnownNodes(None)

    def sign(fleet: str, settings: BusSettings, bus: Bus) -> SignedBus:
        where = NodeConfig(site=site, node=node)
        return node_signing(where, fleet, settings, signer, now_s, known=known).wrap(bus, "memory:simulated")

    return sign


def client_signing(name: str, signer: Signer | None, signatures: str, now_s: Callable[[], float]) -> Signing:
    """For a client, which signs with a key of its own, if it has one, and verifies what nodes say."""
    if signatures == OFF:
        return Signing(None, None, now_s)
    called = _checked(f"{CLIENTS}/{escape(name)}")
    keys = BusKeys(called, b"", Ed25519Verifier(), now_s)
    return Signing(None if signer is None else Identity(called, signer), keys, now_s)


def _checked(name: str) -> str:
    if len(name) > SIGNER_BYTES_MAX:
        raise ConfigError(f"{name[:100]}…: fleet, site and node are longer than {SIGNER_BYTES_MAX} bytes together")
    return name


def _keys(texts: Iterable[str]) -> list[bytes]:
    return [read_key(text).key for text in texts]
