"""Replication of a node: its mesh, membership, replicas and claims, started and stopped in order.

The host connects to it when it is made, and releases to it at its start what an earlier run still owes the ledger. Call
`start` after the host's and the bus's, `stop` before theirs. Whatever part is missing, the node goes on alone: agents
write to shared fields as always, and their claims are refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, structs

from stigmergy.agents.messages import Event
from stigmergy.agents.ordered import LEDGER
from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError
from stigmergy.base.trust import Signer
from stigmergy.bus.presence import Member
from stigmergy.claims.port import LedgerPort, SignedLedger
from stigmergy.claims.service import ClaimService, ClaimsStatus, life_of
from stigmergy.crdt.anti_entropy.context import SharedStatus
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.ledgers.records import EntriesStatus
from stigmergy.ledgers.service import EntryServices, ledger_name
from stigmergy.membership.mesh import MEMBERSHIP, REPLICAS, Mesh, MeshChannels, NullMesh
from stigmergy.membership.service import Membership
from stigmergy.metrics.samples import SampleSheet
from stigmergy.network.questions import Questions
from stigmergy.network.remote_ledger import LedgerAnswers, RemoteLedger
from stigmergy.network.replicator import Replicator
from stigmergy.node.host import Connections, Host

LIFE_BYTES = 4
ALONE = "alone"


class ReplicationStatus(Struct, frozen=True):
    """How a node stands with others: what it shares, and what it has claimed. None: it does not."""

    shared: SharedStatus | None = None
    claims: ClaimsStatus | None = None
    members: int = 0
    ledgers: tuple[EntriesStatus, ...] = ()


class MeshLink(Protocol):
    """A bus that is the mesh of its nodes, too."""

    def make_mesh(self) -> Mesh: ...

    def members(self) -> list[Member]: ...

    def watch(self, look: Callable[[], None]) -> None: ...


class Replication:
    """The others' side of a host. Without a mesh only its own agents share, without a ledger nothing is granted."""

    def __init__(
        self,
        host: Host,
        signer: Signer,
        entropy: Entropy,
        *,
        mesh: Mesh | None = None,
        ledger: LedgerPort | None = None,
        link: MeshLink | None = None,
        me: Member | None = None,
        seeds: Sequence[str] = (),
        trusted: Sequence[bytes] = (),
        ledgers: Mapping[str, LedgerPort] | None = None,
        gateways: Sequence[str] = (),
        questions: Questions | None = None,
    ) -> None:
        """With `link` the bus is the mesh and says who is there; otherwise the mesh is probed, first the `seeds`.
        `ledgers` are the logs of those that the fleet lists, which other nodes ask for with `questions`; without logs
        its `gateways` are asked."""
        self._host = host
        self._entropy = entropy
        self._link = link
        self._channels: MeshChannels | None = None
        self.membership: Membership | None = None
        self.replicas: Replicator | None = None
        self.claims: ClaimService | None = None
        if link is not None:
            mesh = link.make_mesh()
        elif mesh is not None and me is not None:
            self._channels = MeshChannels(mesh)
            self.membership = Membership(
                self._channels.channel(MEMBERSHIP),
                me,
                self._told,
                host.clock,
                entropy,
                fleet=host.declaration.name,
                seeds=seeds,
                settings=host.settings.membership,
            )
        if any(plan.shared for plan in host.declaration.plans.values()):
            # Also alone: agents of this node that share a field hear of each other's writes.
            own: Mesh = mesh or NullMesh(ALONE)
            if self._channels is not None:
                own = self._channels.channel(REPLICAS)
            self.replicas = Replicator(host, own, signer, entropy, self._member_names, trusted=_keys(signer, trusted))
            if link is not None:
                link.watch(self.replicas.look)
        if isinstance(ledger, SignedLedger):
            ledger.sign_with(signer, trusted)
        if ledger is not None:
            self.claims = ClaimService(
                ledger,
                signer,
                host.verifier,
                host.clock.monotonic_ns,
                incarnation=host.replica_incarnation,
                owes=lambda shard, sequence: host.shards[shard].state.outbox.get(LEDGER, sequence) is not None,
                wake=host.wake,
                trusted=trusted,
            )

        self.entries: EntryServices | None = None
        self._questions = questions
        if host.declaration.ledgers and (ledgers or gateways):
            self.entries = self._make_entries(signer, trusted, ledgers or {}, gateways)

    def _make_entries(
        self, signer: Signer, trusted: Sequence[bytes], logs: Mapping[str, LedgerPort], gateways: Sequence[str]
    ) -> EntryServices:
        """The ledgers of users' own: on logs of this node, which answers others; or through its gateways."""
        host, questions = self._host, self._questions
        if logs:
            entries = EntryServices(host, logs, signer, trusted)
            if questions is not None:
                questions.answer = LedgerAnswers(entries.services).answer
            return entries
        if questions is None:
            raise ConfigError("a ledger through gateways needs the bus that they are on; give one with bus=…")
        fleet = host.declaration.name
        remote = {
            name: RemoteLedger(ledger_name(fleet, name), name, questions, gateways) for name in host.declaration.ledgers
        }
        return EntryServices(host, remote, None, trusted)

    @property
    def connections(self) -> Connections:
        """What the host calls of it."""
        locate = None if self.membership is None else self.membership.locate
        found = Connections() if self.replicas is None else self.replicas.connections
        enter = None if self.entries is None else self.entries.propose
        return structs.replace(found, claims=self.claims, locate=locate, enter=enter)

    def _told(self, event: Event) -> None:
        if self.replicas is not None:
            self.replicas.look()
        self._host.tell_interested(event)

    def _member_names(self) -> list[str]:
        known = self.membership if self._link is None else self._link
        return [] if known is None else [member.node for member in known.members()]

    async def start(self) -> None:
        """Begins to listen, to speak and to ask. Waits for nobody."""
        if self.membership is not None:
            await self.membership.start()
        if self.replicas is not None:
            await self.replicas.start()
        if self.claims is not None:
            epoch = self._host.shards.first.epoch
            await self.claims.start(life_of(epoch, self._entropy.token(LIFE_BYTES)))
        if self.entries is not None:
            if self._questions is not None:
                await self._questions.start()
            self.entries.start()

    async def stop(self) -> None:
        """Leaves in order: what is durable is sent, the others hear that we go."""
        await self._end_entries(kill=False)
        if self.claims is not None:
            await self.claims.stop(self._host.settings.drain_s)
        if self.replicas is not None:
            await self.replicas.stop()
        if self.membership is not None:
            await self.membership.stop()
        if self._channels is not None:
            await self._channels.close()

    async def kill(self) -> None:
        """Ends at once, as a crash would."""
        await self._end_entries(kill=True)
        for part in (self.claims, self.replicas, self.membership):
            if part is not None:
                await part.kill()
        if self._channels is not None:
            await self._channels.close()

    async def _end_entries(self, *, kill: bool) -> None:
        if self.entries is not None:
            await (self.entries.kill() if kill else self.entries.stop())
            if self._questions is not None:
                await self._questions.stop()

    def members(self) -> list[Member]:
        """Who is there, where the mesh is probed for it."""
        return [] if self.membership is None else self.membership.members()

    def standing(self) -> ReplicationStatus:
        """How this node stands with the others."""
        return ReplicationStatus(
            shared=None if self.replicas is None else self.replicas.standing(),
            claims=None if self.claims is None else self.claims.standing(),
            members=len(self.members()),
            ledgers=() if self.entries is None else tuple(self.entries.standing()),
        )

    def counters(self) -> dict[str, int]:
        """What was shared, claimed, refused and dropped."""
        counted: dict[str, int] = {}
        for part in (self.membership, self.replicas, self.claims):
            counted |= {} if part is None else part.counters()
        return counted | ({} if self.entries is None else self.entries.counters())

    def measure(self, sheet: SampleSheet) -> None:
        """What this node measures of all three."""
        for part in (self.replicas, self.claims, self.entries):
            if part is not None:
                part.measure(sheet)

    def troubles(self) -> list[Trouble]:
        """What does not mend itself."""
        found = coded("name-conflict", [] if self.membership is None else [self.membership.conflict])
        for part in (self.replicas, self.claims):
            found += [] if part is None else part.troubles()
        return found + ([] if self.entries is None else self.entries.troubles())


def _keys(signer: Signer, trusted: Sequence[bytes]) -> Sequence[bytes] | None:
    """Whose changes are taken: those of the given keys and our own; without any given, of every node heard first under
    its name."""
    return (signer.public_key, *trusted) if trusted else None
