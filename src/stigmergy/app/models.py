"""The models of a node, or of all shards of a worker: where their bundles are, by URL, and who may sign them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from stigmergy.agents.messages import Event
from stigmergy.app.keyring import read_key
from stigmergy.app.node_config import FOLDER, BundleStore, NodeConfig, check_store
from stigmergy.app.parts import journal_path, shown_url
from stigmergy.base.clock import Clock, Threads
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemClock
from stigmergy.base.trust import Signer
from stigmergy.diagnostics.codes import Trouble
from stigmergy.diagnostics.logger import Log
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.bundle import Bundle
from stigmergy.models.engine import ThreadEngine, outlive_threads
from stigmergy.models.rollout_agent import KIND, ModelRollout
from stigmergy.models.service import HANGS_MAX, ModelAnswer, ModelService, ModelSettings
from stigmergy.models.supply import FolderPlace, ModelPlace, StorePlace, Supply
from stigmergy.models.trial import Asking, Trial
from stigmergy.models.versions import RecordsFile, RecordTrust, RolloutVersions, ShadowVersions
from stigmergy.nats.naming import models_bucket
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.tells import AskModels
from stigmergy.shard.inputs import EffectSettled
from stigmergy.shard.outbox import Pending

log = Log("models")
VERSIONS_BESIDE, BUNDLES_BESIDE = "-models", "-bundles"
"""What is kept beside a journal: the last versions that were heard, and the bundles that were fetched."""


class ModelPolicy(Protocol):
    """The policy of a node, as far as models go."""

    def check_model(self, bundle: Bundle) -> str:
        """Says which policy lets a bundle of a model in. Raises ModelRefused."""
        ...

    def call_on_change(self, changed: Callable[[], None]) -> None:
        """Has this called whenever another policy comes into force."""
        ...


class NodeModels:
    """The service of a node, with its supply of bundles, and the rollouts that say which of them answer."""

    def __init__(
        self,
        fleet: Declaration,
        node_config: NodeConfig,
        clock: Clock,
        threads: Threads,
        settings: ModelSettings,
        signer: Signer,
        hosts: Callable[[], Sequence[Host]],
        *,
        run: str,
        journal: str = "",
        trusted: Sequence[bytes] = (),
        policy: ModelPolicy | None = None,
    ) -> None:
        """`hosts` are those whose agents ask. `run` names this run among all that count answers; beside the file of the
        `journal` is kept what a start without a link needs. `trusted` are keys of other nodes, besides `peers`. A
        `policy` is asked about each bundle."""
        self._fleet = fleet
        self._url = node_config.models
        self._store = BundleStore(self._url, models_bucket(fleet.name), clock)
        beside = journal_path(journal)
        place = open_place(node_config, self._store, beside, threads)
        keys = [read_key(text).key for text in node_config.model_keys]
        self.versions: RolloutVersions | None = None
        if KIND in fleet.plans:
            believed = [signer.public_key, *keys, *trusted, *(read_key(text).key for text in node_config.peers)]
            cache = None if beside is None else RecordsFile(Path(f"{beside}{VERSIONS_BESIDE}"))
            trust = RecordTrust(believed, Ed25519Verifier(), signer)
            self.versions = RolloutVersions(fleet.name, fleet.models, trust, clock, threads, source=run, cache=cache)
            self.versions.here = HostRollouts(fleet, hosts)
            self.versions.on_change = self._look_again
        self._engines = [ThreadEngine(HANGS_MAX)]
        self._drain_s = settings.drain_s
        self.service = ModelService(fleet.models, clock, self._engines[0], settings, self.versions)
        check = None
        if policy is not None:
            check = policy.check_model
            policy.call_on_change(self._check_again)
        supplied = (place, keys, Ed25519Verifier(), threads, clock)
        self._supplies = [Supply(*supplied, self.service, check)]
        self.asks: Asking = self.service
        self._services = [self.service]
        if self.versions is not None:
            self._engines.append(ThreadEngine(HANGS_MAX))
            shadow = ModelService(fleet.models, clock, self._engines[1], settings, ShadowVersions(self.versions))
            self._services.append(shadow)
            self._supplies.append(Supply(*supplied, shadow, check))
            self.asks = Trial(self.versions, self.service, shadow)

    def _look_again(self) -> None:
        for supply in self._supplies:
            supply.wake()

    def _check_again(self) -> None:
        for supply in self._supplies:
            supply.check_again()

    def loaded(self, model: str) -> list[str]:
        """The versions that can answer."""
        return self.service.loaded(model)

    @property
    def waiting(self) -> int:
        """Questions that wait for their turn."""
        return sum(service.waiting for service in self._services)

    @property
    def abandoned(self) -> int:
        """Threads that hang."""
        return sum(service.abandoned for service in self._services)

    def troubles(self) -> list[Trouble]:
        """Models whose rules answer, bundles that are refused or missing, a store that cannot be reached."""
        found = self.service.troubles()
        # A shadow that does not answer is no trouble of its agents; its bundles may be, once: it has the same place.
        shadow = [one for supply in self._supplies[1:] for one in supply.troubles()]
        found += [one for one in shadow if not any(one in said for said in found)]
        return found if self.versions is None else [*found, *self.versions.troubles()]

    async def start(self, say: Callable[[str], None]) -> None:
        """Loads what there is, before anybody asks. Says whose rule answers; raises ConfigError for a model that has
        neither rule nor bundle."""
        if self.versions is not None:
            await self.versions.start(self._store.open_keys if self._store.is_store else None)
        # At once: a store that is away is waited for once.
        await asyncio.gather(*(supply.look() for supply in self._supplies))
        without = [name for name in self._fleet.models if not self.service.loaded(name)]
        for name in without:
            if not self._fleet.models[name].__model__.has_fallback:
                raise ConfigError(
                    f"fleet {self._fleet.name!r} asks the model {name!r}, which has no fallback, and no bundle can be "
                    f"used ({self._why(name)}); {_remedy(self._url)}, or give "
                    f"{self._fleet.models[name].__name__} a fallback"
                )
        if without:
            several = f"{', '.join(without)} (" + "; ".join(map(self._why, without)) + ")"
            say(f"no bundle for {several}: the rules in their classes answer; {_remedy(self._url)}")
        for supply in self._supplies:
            supply.start()

    def _why(self, name: str) -> str:
        if self._url is None:
            return "this node has no place for models"
        reason, detail = self.service.unusable.get(name, ("missing", ""))
        return detail or reason

    async def stop(self) -> None:
        """Ends, once no thread is in a runtime any more, or after `drain_s`. What is not answered is asked again after
        the next start."""
        if self.versions is not None:
            await self.versions.stop()
        for supply in self._supplies:
            await supply.stop()
        for service in self._services:
            service.close()
        parts: list[ThreadEngine | Supply] = [*self._engines, *self._supplies]
        hanging = sum(await asyncio.gather(*(part.ended(self._drain_s) for part in parts)))
        if hanging:
            outlive_threads()
            threads = "a thread" if hanging == 1 else f"{hanging} threads"
            log.say("model-hung", f"the node ends, and {threads} in a runtime did not within {self._drain_s:g} s: left")
        await self._store.close()


def open_place(node_config: NodeConfig, store: BundleStore, beside: Path | None, threads: Threads) -> ModelPlace | None:
    """Where the bundles of a node are; None if it is not told. Raises ConfigError."""
    url = node_config.models
    if url is None:
        return None
    if not node_config.model_keys:
        raise ConfigError(
            f"models {shown_url(url)!r} without model_keys: nobody's bundles would be believed; name the public keys "
            'of those who sign them, as in model_keys = ["ml.pub"] under [fleet] in stigmergy.toml, or with --model-key'
        )
    if url == FOLDER:
        raise ConfigError(f"models {shown_url(url)!r}: give a folder of bundles, as folder:models")
    if not store.is_store:
        return FolderPlace(Path(url.removeprefix(FOLDER)), threads)
    check_store(url)
    return StorePlace(store.open_objects, None if beside is None else Path(f"{beside}{BUNDLES_BESIDE}"), threads)


async def publish_bundle(url: str, fleet: str, name: str, data: bytes) -> None:
    """Puts a bundle where a fleet's models are: into the folder, or the store."""
    if url.startswith(FOLDER):
        folder = Path(url.removeprefix(FOLDER))
        fresh = folder / f"{name}.new"
        try:
            fresh.write_bytes(data)
            fresh.replace(folder / name)
        except OSError as error:
            raise ConfigError(f"{folder / name}: cannot be written ({error.strerror}); name the folder") from None
        return
    store = BundleStore(url, models_bucket(fleet), SystemClock())
    try:
        await (await store.open_objects()).put(name, data)
    finally:
        await store.close()


def _remedy(url: str | None) -> str:
    if url is None:
        return 'name a place, such as models = "folder:models" under [fleet] in stigmergy.toml, or give --models'
    return f"put one into {shown_url(url)} with: stigmergy model put BUNDLE --models {shown_url(url)}"


class HostRollouts:
    """The agents of rollouts on these hosts (the RolloutsHere port)."""

    def __init__(self, fleet: Declaration, hosts: Callable[[], Sequence[Host]]) -> None:
        self._fleet = fleet
        self._hosts = hosts

    def find(self, model: str) -> ModelRollout | None:
        """Its durable state; None if it does not run here, or nothing was begun."""
        address = f"{KIND}/{model}"
        host = self._host_of(address)
        found = None if host is None else host.durable_image(address)
        return found if isinstance(found, ModelRollout) else None

    async def observe(self, model: str, event: Event) -> None:
        """Tells it something, and waits until that is kept."""
        address = f"{KIND}/{model}"
        if (host := self._host_of(address)) is not None:
            await host.intake.observe(address, event)

    def _host_of(self, address: str) -> Host | None:
        home = self._fleet.homes.of(address)
        for host in self._hosts():
            if host.failure is None and home in host.shards and host.assignment.runs(address):
                return host
        return None


def asker_of(host: Host, service: Asking) -> AskModels:
    """What `Connections.models` is for this host. An answer settles the question, so it is recorded once; a question
    that has none at the end is asked again after the next start. Answers that come together, as those of one run do,
    enter the mailbox as one input. A trial hears what agents tell of answers."""
    came: dict[int, list[EffectSettled]] = {}

    def ask(shard: int, pending: Pending) -> None:
        begun_ns = host.effector.traced_ns(shard, pending)
        place = (pending.incarnation, pending.position, pending.index)
        service.ask(pending.agent, pending.body, partial(settle, shard, pending, begun_ns), place)

    def settle(shard: int, pending: Pending, begun_ns: int, answer: ModelAnswer) -> None:
        if host.failure is not None:
            return
        if host.measures is not None:
            host.measures.answered(answer.model, answer.version, answer.outcome, answer.latency_ns)
        if answer.failed and host.effector.failures is not None:
            key = f"{pending.incarnation}.{shard}.{pending.position}.{pending.index}"
            about = (shard, pending.agent, f"model {answer.model}", key)
            host.effector.failures.effect_failed(*about, answer.failed)
        times_ns = (begun_ns, host.effector.traced_ns(shard, pending)) if begun_ns else (0, 0)
        told = EffectSettled(pending.sink, pending.sequence, answer.body, times_ns, answer.failed)
        together = came.get(shard)
        if together is None:
            came[shard] = [told]
            asyncio.get_running_loop().call_soon(tell, shard)
        else:
            together.append(told)

    def tell(shard: int) -> None:
        results = came.pop(shard)
        if host.failure is None:
            host.intake.put_results(shard, results)

    return AskModels(ask, service.heard if isinstance(service, Trial) else None)
