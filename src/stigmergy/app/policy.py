"""The policy of a node, or of all shards of a worker: where it is, by URL, and who may sign it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stigmergy.app.keyring import read_key
from stigmergy.app.node_config import FOLDER, BundleStore, NodeConfig, check_store
from stigmergy.app.parts import journal_path, shown_url
from stigmergy.base.clock import Clock, Threads
from stigmergy.base.errors import ConfigError, ModelRefused
from stigmergy.base.system import SystemClock
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.bundle import Bundle
from stigmergy.nats.naming import policy_bucket
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Connections
from stigmergy.node.settings import Settings
from stigmergy.policy.place import PolicyFolder, PolicyPlace, PolicyStore
from stigmergy.policy.rego import check_engine
from stigmergy.policy.service import NodePolicy, PolicySettings
from stigmergy.shard.judging import PolicyQuestion

POLICY_BESIDE = "-policy"
"""What is kept beside a journal: the policy in force."""


class PolicyAt:
    """The policy of a node, and the connection that it comes by."""

    def __init__(
        self,
        fleet: str,
        node_config: NodeConfig,
        clock: Clock,
        threads: Threads,
        settings: PolicySettings,
        journal: str = "",
    ) -> None:
        """Beside the file of the `journal` is kept what a start without a link needs. Raises ConfigError."""
        url = node_config.policy or ""
        if not node_config.policy_keys:
            raise ConfigError(
                f"policy {shown_url(url)!r} without policy_keys: nobody's policy would be believed; name the public "
                'keys of those who sign it, as in policy_keys = ["ops.pub"] under [fleet] in stigmergy.toml, or with '
                "--policy-key"
            )
        check_engine()
        self._store = BundleStore(url, policy_bucket(fleet), clock)
        beside = journal_path(journal)
        keys = [read_key(text).key for text in node_config.policy_keys]
        kept = None if beside is None else Path(f"{beside}{POLICY_BESIDE}")
        place = open_place(url, self._store, threads)
        self.policy = NodePolicy(fleet, place, keys, Ed25519Verifier(), clock, threads, settings, kept)
        self.start, self.counters, self.troubles = self.policy.start, self.policy.counters, self.policy.troubles

    @property
    def connections(self) -> Connections:
        """What a host calls."""
        return Connections(judge=self.policy.judge)

    def call_on_change(self, changed: Callable[[], None]) -> None:
        """Has this called whenever another policy comes into force."""
        self.policy.on_change = changed

    def check_model(self, bundle: Bundle) -> str:
        """Says which policy lets a bundle of a model in. Raises ModelRefused."""
        manifest = bundle.manifest
        fields = {
            "name": manifest.name,
            "version": manifest.version,
            "class": str(manifest.model_class),
            "runtime": manifest.runtime,
            "digest": bundle.digest.hex(),
            "signer": bundle.signer.hex(),
            "licence": manifest.licence,
            "metrics": {one.name: one.value for one in manifest.metrics},
            "notes": {one.name: one.text for one in manifest.notes},
        }
        ruling = self.policy.judge(PolicyQuestion("model", "ModelBundle", fields))
        if ruling.refused is not None:
            raise ModelRefused(ruling.refused)
        return ruling.stamp

    async def stop(self) -> None:
        """Ends the policy and the connection."""
        await self.policy.stop()
        await self._store.close()


def policy_of(
    fleet: Declaration, node_config: NodeConfig, clock: Clock, threads: Threads, settings: Settings, journal: str = ""
) -> PolicyAt | None:
    """The policy that the configuration names; None if it names none. Raises ConfigError."""
    if node_config.policy is None:
        return None
    return PolicyAt(fleet.name, node_config, clock, threads, settings.policy, journal)


def open_place(url: str, store: BundleStore, threads: Threads) -> PolicyPlace:
    """Where the bundles are. Raises ConfigError."""
    if url == FOLDER:
        raise ConfigError(f"policy {url!r}: give a folder of bundles, as folder:policy")
    if not store.is_store:
        return PolicyFolder(Path(url.removeprefix(FOLDER)), threads)
    check_store(url)
    return PolicyStore(store.open_objects)


async def publish_policy(url: str, fleet: str, name: str, data: bytes) -> None:
    """Puts a bundle where a fleet's policy is: into the folder, or the store."""
    if url.startswith(FOLDER):
        folder = Path(url.removeprefix(FOLDER))
        fresh = folder / f"{name}.new"
        try:
            fresh.write_bytes(data)
            fresh.replace(folder / name)
        except OSError as error:
            raise ConfigError(f"{folder / name}: cannot be written ({error.strerror}); name the folder") from None
        return
    check_store(url)
    store = BundleStore(url, policy_bucket(fleet), SystemClock())
    try:
        await (await store.open_objects()).put(name, data)
    finally:
        await store.close()
