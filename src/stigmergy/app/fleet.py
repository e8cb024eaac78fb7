"""The composition root: puts a fleet together with a journal, a key and clocks, each chosen by its URL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as metadata_version
from pathlib import Path
from types import TracebackType

from msgspec import structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.columns import Engine
from stigmergy.app.blobs import BlobsAt, blobs_url
from stigmergy.app.config import Config, find_config
from stigmergy.app.copies import Copiers, check_copied, open_archive
from stigmergy.app.feeds import checked_rings, open_rings
from stigmergy.app.journals import FLIGHT, JOURNALS, inspect_all, inspect_journal, journals_in, open_journal
from stigmergy.app.keyring import NodeKey, default_key_path, is_private_key, load_signer, make_private_key, read_key
from stigmergy.app.models import NodeModels, asker_of
from stigmergy.app.node_config import (
    BUSES,
    NodeConfig,
    find_node_config,
    make_registry,
    open_bus,
    open_exporter,
    open_ledger,
    open_ledgers,
    open_levels,
    open_mesh,
)
from stigmergy.app.parts import SEGMENTS, SQLITE, check_one_process, journal_path, shown_url
from stigmergy.app.policy import PolicyAt, policy_of
from stigmergy.app.profiled_process import profiled_process
from stigmergy.app.raw import check_raw
from stigmergy.app.signing import NOTHING_SIGNED, Signing, journal_signing
from stigmergy.app.views import open_view_store, views_url
from stigmergy.audit.archive import Archiver
from stigmergy.audit.archive_folder import HoldsFile, NewFile
from stigmergy.audit.blob_references import JournalLog, ReferenceTeller
from stigmergy.audit.flight_journal import open_flight
from stigmergy.audit.retention import RetentionHolds, Safeguards
from stigmergy.audit.rotation import Rotation
from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError, NotRunning
from stigmergy.base.system import SystemClock, SystemEntropy, SystemThreads, make_process_ours, place_of
from stigmergy.base.trust import Signer, Verifier
from stigmergy.bus.port import Bus
from stigmergy.claims.sqlite_file import inspect_ledger
from stigmergy.control.live import Live
from stigmergy.control.node_router import NodeAnswers, NodeRouter
from stigmergy.control.protocol import ControlEndpoint, ControlHandler
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.control.socket import ControlCall, ControlClient, ControlServer, answers_at
from stigmergy.diagnostics.logger import Log
from stigmergy.journal.port import Journal
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.keys.keyfile import (
    PrivateKey,
    PublicKey,
    decode_public_key,
    encode_public_key,
    fingerprint,
    read_private_key,
    read_public_key,
)
from stigmergy.membership.udp import parse_url as read_mesh_url
from stigmergy.network.blob_exchange import BlobExchange
from stigmergy.network.bus_link import BusLink, Levels, describe_this_node
from stigmergy.network.questions import Questions
from stigmergy.network.registry import Registry
from stigmergy.network.remote_ledger import MESH as LEDGER_MESH
from stigmergy.network.remote_ledger import gateways_of
from stigmergy.network.replication import Replication
from stigmergy.node.column_feeds import RingReaders
from stigmergy.node.declaration import Declaration
from stigmergy.node.device_tasks import Devices, start_attached
from stigmergy.node.host import Connections, Host, connections_of, open_host
from stigmergy.node.needs import needs_of
from stigmergy.node.profiling import Profiler
from stigmergy.node.settings import Settings
from stigmergy.pki.identity import with_identity
from stigmergy.traces.exporter import SpanExporter
from stigmergy.uplink.rules import UplinkRule
from stigmergy.views.service import HostLogs, ViewService

_LOG = Log("start")


class Fleet(Declaration):
    """A fleet of agents. Declare it once; run it embedded, from the command line, or in the simulator.

    fleet = Fleet("delivery", agents=[Drone])

    async with fleet.running() as live:
        await live.send("Drone/D-17", StartMission(mission="M1"))
    """

    def engine_of(self, cls: type[Agent]) -> Engine:
        """Reads the class, and refuses it with lines and reasons if it cannot be compiled. Nothing is compiled yet."""
        try:
            from stigmergy.compiled.table import engine_of
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{cls.__qualname__} is to be compiled, and {error.name} is not installed; "
                'pip install "stigmergy[compiled]", or declare the fleet without compiled='
            ) from None
        return engine_of(cls)

    def running(
        self,
        *,
        journal: str | None = None,
        key: str | Path | None = None,
        settings: Settings | None = None,
        trust: Sequence[str] = (),
        agents: Sequence[str] = (),
        bus: str | None = None,
        site: str | None = None,
        node: str | None = None,
        uplink: UplinkRule | None = None,
        uplink_to: str | None = None,
        collect_from: str | None = None,
        rings: Sequence[str | Path] = (),
        mesh: str | None = None,
        ledger: str | None = None,
        peers: Sequence[str] = (),
        copies: Sequence[str] = (),
        blobs: str | None = None,
        take_over: bool = False,
        views: str | None = None,
        models: str | None = None,
        model_keys: Sequence[str] = (),
        policy: str | None = None,
        policy_keys: Sequence[str] = (),
    ) -> Running:
        """Runs the fleet in this program, on a SQLite file and a key beside it unless told otherwise.

        `trust` names public keys (lines or files) whose end of the log is believed beside our own: after a rotation.
        `agents` names those that this node runs ('Drone/D-17', 'Drone/D-1*', 'Drone/*'): every other is refused,
        whatever comes for it; without it the node runs all. `bus` connects the node to others ('mqtt://gateway:1883');
        `uplink` says what of its log it sends on there, or by the bus that `uplink_to` names; `collect_from` names one
        that the uplinks of whole sites come in by, as gateways have them. `rings` names those that producers on this
        machine feed it by.
        Shared fields find their peers over the bus, or over `mesh` ('udp://0.0.0.0:7946?peers=…'); `ledger` orders what
        agents claim ('sqlite:ledger.db'); `peers` names the public keys of the nodes that are believed in both.
        `copies` names stores that the journal is copied to ('nats://hub:4222', 'folder:/mnt/peer'); `blobs` the store
        of large payloads, which are in a folder beside the journal otherwise; `models` where bundles of models are
        ('folder:models'), of which those signed by `model_keys` are believed; `policy` the same for the policy that
        commands pass. `take_over` lets it run agents of another node on the bus, which is gone for good.
        The order of precedence: these arguments, `stigmergy.toml` in the current directory, `NAME.db` and `NAME.key`.
        """
        _check_arguments(journal, key, settings, trust, agents)
        _check_texts(bus=bus, site=site, node=node, mesh=mesh, ledger=ledger, policy=policy)
        _check_texts(uplink_to=uplink_to, collect_from=collect_from, blobs=blobs, views=views, models=models)
        _check_lists(peers=peers, copies=copies, model_keys=model_keys, policy_keys=policy_keys)
        if uplink is not None and not isinstance(uplink, UplinkRule):
            raise ConfigError(f"uplink={uplink!r}: give UplinkRule(…)")
        where = NodeConfig(
            bus,
            site,
            node,
            uplink,
            mesh=mesh,
            ledger=ledger,
            peers=tuple(peers),
            uplink_to=uplink_to,
            collect_from=collect_from,
            copies=tuple(copies),
            blobs=blobs,
            views=views,
            models=models,
            model_keys=tuple(model_keys),
            policy=policy,
            policy_keys=tuple(policy_keys),
            take_over=bool(take_over),
        )
        config = find_config(Path.cwd())
        processes = config.fleet.processes
        check_one_process(processes, f"processes = {processes} in stigmergy.toml", "MODULE:FLEET")
        place = None if key is None else Path(key)
        return Running(self, config, journal, place, settings, trust, agents, where, rings=rings)


class Running:
    """An async context manager: on entering the fleet recovers and runs, on leaving it drains and closes."""

    def __init__(
        self,
        fleet: Declaration,
        config: Config,
        journal: str | None,
        key: Path | None,
        settings: Settings | None,
        trust: Sequence[str] = (),
        agents: Sequence[str] = (),
        node_config: NodeConfig | None = None,
        rings: Sequence[str | Path] = (),
    ) -> None:
        self._fleet = fleet
        named = journal or config.fleet.journal or f"sqlite:{fleet.name}.db"
        self.url = with_identity(named, config.fleet.identity)
        self._key = key or (Path(config.fleet.key) if config.fleet.key else default_key_path(fleet.name, self.url))
        self._settings = settings or config.settings
        self._trust = [read_key(text).key for text in (*config.fleet.trust, *trust)]
        self._agents = tuple(agents) or config.fleet.agents
        self.rings = checked_rings(rings) or config.fleet.rings
        self.node_config = find_node_config(node_config or NodeConfig(), config)
        check_copied(self.url, self.node_config.copies)
        self._blobs_url = blobs_url(self.node_config.blobs, self.url)
        self.say: Callable[[str], None] = _say_to_the_log
        """Told what is worth a line at a start, such as that nobody hears agents. Set it before entering."""
        self._threads = SystemThreads()
        self._link: BusLink | None = None
        self._signing = NOTHING_SIGNED
        self._host: Host | None = None
        self._safeguards: Safeguards | None = None
        self._devices: Devices | None = None
        self._signer: Signer | None = None
        self._feedings: RingReaders | None = None
        self._copiers: Copiers | None = None
        self._blobs: BlobsAt | None = None
        self._views_url = views_url(self.node_config.views, self.url) if fleet.views else ""
        self._views: ViewService | None = None
        self._models: NodeModels | None = None
        self._policy: PolicyAt | None = None
        self._references: ReferenceTeller | None = None
        self._exchange: BlobExchange | None = None
        self._questions: Questions | None = None
        self._exporter: SpanExporter | None = None
        self._replication: Replication | None = None

    def _check_needs(self) -> None:
        """Refuses a fleet that claims and has no ledger; says once what nobody will hear for want of a bus."""
        needs = needs_of(self._fleet, self._agents)
        if needs.why_ledger and self.node_config.ledger is None:
            raise ConfigError(
                f"fleet {self._fleet.name!r} needs a ledger ({needs.why_ledger}), and this node has none: nothing "
                'can be granted or entered; write ledger = "sqlite:ledger.db" under [fleet] in stigmergy.toml, for the '
                'nodes of this machine, or "nats://hub:4222?replicas=3" for several machines; or give it with --ledger '
                "or running(ledger=…)"
            )
        if needs.claims and gateways_of(self.node_config.ledger or ""):
            raise ConfigError(
                f"ledger {self.node_config.ledger!r} is for proposals through gateways, and claims need one that this "
                f'node reaches itself ({needs.why_ledger}); give ledger="nats://hub:4222?replicas=3"'
            )
        if needs.why_heard and self.node_config.bus is None:
            self.say(
                f"this node has no bus ({needs.why_heard}): nothing published leaves it, and no message reaches it; "
                'name one, such as bus = "mqtt://gateway:1883" under [fleet] in stigmergy.toml, if somebody is to hear'
            )

    async def __aenter__(self) -> Live:
        self._check_needs()
        check_raw(self._fleet, self.settings, self.node_config, self.url, self._views_url, self.say)
        self._fleet.check_safe_actions()
        self._fleet.prepare(lambda text: _LOG.say("agents-compiled", text))
        entropy = SystemEntropy()
        bus = open_bus(self.node_config, self._fleet.name, entropy)
        key = NodeKey(self._key, self.url)
        if bus is not None:
            about = (self.node_config, self._fleet.name, self.settings.bus, key.signer, self.url)
            self._signing = journal_signing(*about, is_passing=self._key is None)
            bus = self._signing.wrap(bus, self.node_config.bus or "")
        journal = open_journal(self.url, self._fleet.name, self._fleet.shards, shard_by=self._fleet.homes.key_name)
        try:
            key.check(journal)
            registry = None if bus is None else await self._check_registry(journal, entropy, self._signing)
            signer = key.signer
            place = b"" if (path := journal_path(self.url)) is None else place_of(path)
            host = open_host(
                self._fleet,
                journal,
                signer,
                verifier(),
                SystemClock(),
                self._settings,
                self._trust,
                place=place,
                agents=self._agents,
                connect=lambda host: self._connect(host, signer, entropy, bus, registry),
                claim=0 if registry is None else registry.epoch,
            )
            self._views = self._make_views(host)
            self._exporter = open_exporter(host.settings.traces, self._fleet.name, self._copied_as)
            host.trace_to(self._exporter, self._copied_as)
            if self._views is not None and self._exporter is not None:
                self._views.trace(self._exporter, host.clock.wall_ns)
            devices = Devices(host, self._threads)
            link, replication = self._link, self._replication
            if self._policy is not None:
                await self._policy.start()
            if self._models is not None:
                await self._models.start(self.say)
            key.keep()
            await start_attached(host, devices)
            key.remember(journal, self.say)
            if self.node_config.copies:
                key.tell_not_copied(host.shards.signers.state.signers, self.say)
            self._copiers = Copiers(host, self.node_config.copies, self._copied_as)
        except BaseException:
            await self._stop_bundles()
            await journal.close()
            raise
        self._host = host
        self._devices = devices
        self._signer = signer
        devices.start()
        try:
            self._feedings = RingReaders(host, open_rings(self.rings))
            if link is not None:
                await self._exchange_blobs(host, link)
                self._questions = Questions(link.make_mesh("ask"), entropy)
                await self._questions.start()
                await link.start()
            if replication is not None:
                await replication.start()
            self._feedings.start()
            self._copiers.start()
            if self._views is not None:
                await self._views.start()
            self._references = self._tell_references(host)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        live = self._live_of(host, entropy, devices, self._copiers)
        if self._questions is not None:
            # Also a program without a control endpoint answers other nodes.
            self._questions.answer = NodeAnswers(self._own_service(live, "", lambda: None), host).answer
        return live

    def _live_of(self, host: Host, entropy: Entropy, devices: Devices, copiers: Copiers) -> Live:
        return Live(
            host,
            entropy,
            devices,
            link=self._link,
            replication=self._replication,
            feedings=self._feedings,
            copies=copiers.standings,
            views=self._views,
            references=self._references,
            models=self._models,
            policy=self._policy,
        )

    async def _check_registry(self, journal: Journal, entropy: Entropy, signing: Signing) -> Registry:
        """Looks for a node that has the agents or the name of this one. Raises ConfigError for one."""
        registry = make_registry(self.node_config, self._fleet.name, self._agents, entropy, signing.wrap)
        registry.journal = "" if self.url.startswith("memory:") else f"{journal.identity.incarnation:x}"
        await registry.check()
        return registry

    def _make_views(self, host: Host) -> ViewService | None:
        """The fleet's views, which follow the log; from here on retention waits for them."""
        fleet = self._fleet
        if not fleet.views:
            return None
        store, logs = open_view_store(self._views_url), [HostLogs(fleet.name, host.feed)]
        # Events of an agent that runs elsewhere are not in this log: to wait for them is refused.
        service = ViewService(fleet.name, fleet.views, store, logs, host.intake.home_of)
        host.housekeeper.safeguards.views = service
        return service

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        parts = (
            self._questions,
            self._exchange,
            self._references,
            self._views,
            self._copiers,
            self._devices,
            self._feedings,
        )
        for part in (*parts, self._replication, self._link):
            if part is not None:
                await part.stop()
        if self._safeguards is not None:
            await self._safeguards.close()
        if self._host is not None:
            await self._host.stop()
        await self._stop_bundles()
        if self._feedings is not None:
            self._feedings.close()
        if self._devices is not None:
            await self._devices.close()
        if self._blobs is not None:
            await self._blobs.stop()
        if self._exporter is not None:
            await self._threads.run(self._exporter.close)

    async def _stop_bundles(self) -> None:
        for part in (self._models, self._policy):
            if part is not None:
                await part.stop()

    def _connect(
        self, host: Host, signer: Signer, entropy: Entropy, bus: Bus | None, registry: Registry | None
    ) -> Connections:
        """Makes the node's sides of its bus, of its peers and of its ledger, and what retention has to respect."""
        levels = open_levels(self.node_config, self._fleet.name, entropy, self._signing.wrap)
        self._link = None if bus is None else make_link(host, bus, entropy, self.node_config, levels, registry)
        self._replication = make_replication(host, signer, entropy, self.node_config, self._link)
        self._safeguards = make_safeguards(host, self.url, signer)
        self._blobs = BlobsAt(
            self._blobs_url,
            self._fleet.name,
            host.clock,
            self._threads,
            host.settings.blobs,
            make_folder=self.node_config.blobs is None,
        )
        self._policy = policy_of(self._fleet, self.node_config, host.clock, self._threads, host.settings, self.url)
        if self._fleet.models:
            # Each start has another epoch: what this run counts is told apart from what the last one did.
            run = f"{self._copied_as}/{host.journal.identity.incarnation:x}.{max(one.epoch for one in host.shards)}"
            about = (self._fleet, self.node_config, host.clock, self._threads, host.settings.models, signer)
            self._models = NodeModels(*about, lambda: [host], run=run, journal=self.url, policy=self._policy)
        asks = None if self._models is None else asker_of(host, self._models.asks)
        found = connections_of(self._link, self._replication, self._policy)
        return structs.replace(found, safeguards=self._safeguards, blobs=self._blobs.blobs, models=asks)

    async def _exchange_blobs(self, host: Host, link: BusLink) -> None:
        """Gives blobs to other nodes on the bus, and takes theirs, where each has a store of its own."""
        if host.blobs is not None and self._blobs_url.startswith(("folder:", "memory:")):
            exchange = BlobExchange(
                link.make_mesh("blobs"),
                host.blobs,
                lambda: [member.node for member in link.members()],
                lambda: [member.node for member in link.presence.away()],
            )
            await exchange.start()
            self._exchange = exchange

    def _tell_references(self, host: Host) -> ReferenceTeller | None:
        """Begins to tell the store of blobs what the log refers to. A journal in memory is gone with its references."""
        if self.url.startswith("memory:") or not self._blobs_url or self._blobs is None:
            return None

        async def logs() -> list[JournalLog]:
            return [JournalLog(host.journal, shard.state.shard) for shard in host.shards]

        teller = ReferenceTeller(
            self._blobs.blobs,
            f"{self._copied_as}/{host.journal.identity.incarnation}",
            logs,
            keeps_all=host.settings.retention.archive is not None,
            collects=host.settings.blobs.collect or self.node_config.blobs is None,
        )
        teller.start()
        return teller

    @property
    def fleet(self) -> Declaration:
        """What runs."""
        return self._fleet

    @property
    def _copied_as(self) -> str:
        """What this node's journal is called among the copies."""
        return f"{self.node_config.site}/{self.node_config.node}"

    @property
    def key(self) -> Path | None:
        """The file with the key that it signs with; None for one that is made for this run only."""
        return self._key

    @property
    def settings(self) -> Settings:
        """The bounds that it will have."""
        return self._settings or self._fleet.settings

    @property
    def socket(self) -> Path:
        """Where the control endpoint is by default: beside the journal."""
        return control_path(self.url, self._fleet.name)

    def service(
        self,
        live: Live,
        version: str,
        stop: Callable[[], None],
        *,
        role: str = "node",
        metrics_url: Callable[[], str] = str,
    ) -> ControlHandler:
        """Answers control requests about the running fleet; `stop` is called when a client asks for that."""
        own = self._own_service(live, version, stop, role, metrics_url)
        if self._questions is None or self._link is None:
            return own
        self._questions.answer = NodeAnswers(own, live.host).answer
        return NodeRouter(own, live.host, self._link, self._questions)

    def _own_service(
        self,
        live: Live,
        version: str,
        stop: Callable[[], None],
        role: str = "node",
        metrics_url: Callable[[], str] = str,
    ) -> ControlService:
        if self._signer is None:
            raise NotRunning("the fleet does not run yet; enter it first")
        key = (self._signer.algorithm, self._signer.public_key)
        node = NodeDescription(version, shown_url(self.url), key, self._signer, role=role, metrics_url=metrics_url)
        return ControlService(live, verifier(), node, stop, Profiler(lambda: [live.host], profiled_process()))

    def control(self, service: ControlHandler, path: Path) -> ControlServer:
        """The control endpoint of the running fleet, not yet listening."""
        return ControlServer(path, ControlEndpoint(service))


def _say_to_the_log(sentence: str) -> None:
    _LOG.say("start-notice", sentence)


def _check_texts(**given: object) -> None:
    for name, text in given.items():
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"{name}={text!r}: give a text, or leave it out")


def _check_arguments(journal: object, key: object, settings: object, trust: object, agents: object) -> None:
    """What a program gives wrongly is said before anything is opened."""
    if journal is not None and (not isinstance(journal, str) or "\0" in journal):
        raise ConfigError(f"journal={journal!r}: give a text like 'sqlite:fleet.db'")
    if key is not None and (not isinstance(key, str | Path) or "\0" in str(key)):
        raise ConfigError(f"key={key!r}: give the path of the key file")
    if settings is not None and not isinstance(settings, Settings):
        raise ConfigError(f"settings={settings!r}: give Settings(…)")
    _check_lists(trust=trust, agents=agents)


def _check_lists(**given: object) -> None:
    for name, texts in given.items():
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{name}={texts!r}: give a list of texts, also for one alone")


def make_link(
    host: Host,
    bus: Bus,
    entropy: Entropy,
    node_config: NodeConfig,
    levels: Levels | None = None,
    registry: Registry | None = None,
) -> BusLink:
    """The node's side of the bus."""
    site, node = node_config.site or "", node_config.node or ""
    return BusLink(
        host,
        bus,
        entropy,
        site=site,
        node=node,
        version=installed_version(),
        uplink=node_config.uplink,
        collects=node_config.collects,
        levels=levels,
        registry=registry,
    )


def make_replication(
    host: Host, signer: Signer, entropy: Entropy, node_config: NodeConfig, link: BusLink | None
) -> Replication:
    """The node's side of its peers and of its ledger."""
    fleet = host.declaration
    mesh, ordered = open_mesh(node_config, host.clock), any(plan.ordered for plan in fleet.plans.values())
    ledger = open_ledger(node_config, fleet.name) if ordered or not fleet.ledgers else None
    ledgers, gateways = (
        open_ledgers(node_config, fleet.name, list(fleet.ledgers)),
        gateways_of(node_config.ledger or ""),
    )
    trusted = [read_key(text).key for text in node_config.peers]
    if mesh is None and link is not None:
        return Replication(
            host,
            signer,
            entropy,
            link=link,
            ledger=ledger,
            trusted=trusted,
            ledgers=ledgers,
            gateways=gateways,
            questions=Questions(link.make_mesh(LEDGER_MESH), entropy),
        )
    return Replication(
        host,
        signer,
        entropy,
        mesh=mesh,
        ledger=ledger,
        me=describe_this_node(host, node_config.node or "", entropy, installed_version()),
        seeds=getattr(mesh, "seeds", ()),
        trusted=trusted,
        ledgers=ledgers,
        gateways=gateways,
        questions=None if link is None else Questions(link.make_mesh(LEDGER_MESH), entropy),
    )


def installed_version() -> str:
    """The version of this library."""
    try:
        return metadata_version("stigmergy")
    except PackageNotFoundError:
        return ""


def make_safeguards(host: Host, url: str, signer: Signer) -> Safeguards:
    """What keeps retention from dropping: the holds beside the journal, and the archive that the settings name."""
    rule = host.settings.retention
    archivist = None
    if rule.archive is not None:
        archive = open_archive(rule.archive, host.declaration.name, host.clock)
        shards, wall_ns = host.shards, host.clock.wall_ns
        signers, live = lambda: shards.signers.state.signers, shards.reading
        archivist = Archiver(host.journal, archive, signer, wall_ns, signers, live=live)
    return Safeguards(find_holds(url), archivist, archive_or_drop=rule.archive_or_drop)


def find_holds(url: str) -> RetentionHolds | None:
    """The holds on a journal, in a file beside it; none for a journal that is no file."""
    return None if (path := journal_path(url)) is None else RetentionHolds(HoldsFile(Path(f"{path}-holds")))


async def open_rotation(url: str, key: Path) -> tuple[Journal, Rotation]:
    """A journal that nobody runs, opened so that its signers can be changed; the caller closes it."""
    signer = load_signer(key, create=False)
    looked_at = inspect_journal(url)
    identity = looked_at.identity
    await looked_at.close()
    journal = open_journal(url, identity.fleet, identity.shards, identity.part, identity.shard_by)
    try:
        return journal, Rotation(journal, signer, verifier(), SystemClock())
    except BaseException:
        await journal.close()
        raise


def verifier() -> Verifier:
    """Who checks signatures and keys."""
    return Ed25519Verifier()


def control_path(url: str, fleet: str) -> Path:
    """Where a node listens for control: beside its journal, `fleet.db` and `fleet.db.sock`."""
    return Path(f"{journal_path(url) or f'{fleet}.db'}.sock")


__all__ = [
    "BUSES",
    "FLIGHT",
    "JOURNALS",
    "SEGMENTS",
    "SQLITE",
    "ControlCall",
    "ControlClient",
    "ControlServer",
    "Fleet",
    "NewFile",
    "NodeConfig",
    "PrivateKey",
    "PublicKey",
    "Running",
    "answers_at",
    "control_path",
    "decode_public_key",
    "default_key_path",
    "encode_public_key",
    "find_holds",
    "find_node_config",
    "fingerprint",
    "inspect_all",
    "inspect_journal",
    "inspect_ledger",
    "is_private_key",
    "journal_path",
    "journals_in",
    "load_signer",
    "make_private_key",
    "make_process_ours",
    "open_bus",
    "open_flight",
    "open_journal",
    "open_rotation",
    "read_key",
    "read_mesh_url",
    "read_private_key",
    "read_public_key",
    "verifier",
]
"""What the layers above use; the adapters' functions among it are named here, so that nobody else has to name them."""
