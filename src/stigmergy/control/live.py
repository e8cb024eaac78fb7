"""A running fleet, as the embedding program sees it: send, observe, query, inspect failures.

    async with fleet.running() as live:
        answer = await live.send("Drone/D-17", StartMission(mission="M1"))     # Accepted | Refused(reason)
        state = live.query("Drone/D-17")                                       # local, durable state

Queries are local: they see the state that is on disk, never one that a power loss could take back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.codec import printable
from stigmergy.agents.ledgers import EntryT, Ledger
from stigmergy.agents.messages import Blob, Command, Event
from stigmergy.agents.view import plan_of
from stigmergy.audit.blob_references import ReferenceTeller
from stigmergy.audit.copier import CopyStanding
from stigmergy.base.clock import Entropy
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError, NoAnswer, StigmergyError, TrustError, UnknownKind
from stigmergy.bus.presence import Member
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.journal.signers import check_enrolment, check_revocation
from stigmergy.ledgers.reader import LedgerReader
from stigmergy.network.bus_link import BusLink, LinkStatus
from stigmergy.network.peers import PeerProcesses
from stigmergy.network.replication import Replication, ReplicationStatus
from stigmergy.node.column_feeds import RingReaders
from stigmergy.node.column_intake import durable_addresses
from stigmergy.node.column_roster import Roster
from stigmergy.node.device_tasks import Devices, DeviceStatus
from stigmergy.node.history import LocalWatching
from stigmergy.node.host import Host
from stigmergy.node.intake import checked_address
from stigmergy.node.tracer import active_context
from stigmergy.node.watching import ANY_TOPIC, Watching, read_start, read_watched
from stigmergy.shard.batches import is_batch
from stigmergy.shard.commit import Head
from stigmergy.shard.inputs import (
    EnrollSigner,
    Input,
    LetterDropped,
    LetterRetried,
    ResumeAgent,
    RevokeSigner,
    Verdict,
)
from stigmergy.shard.judging import Sender
from stigmergy.shard.memory import DeadLetter
from stigmergy.shard.shard import Shard
from stigmergy.shard.tracing import TraceContext, read_context
from stigmergy.store.blobs import Blobs, Source
from stigmergy.views.query import V, ViewQuery
from stigmergy.views.service import ViewService

BY_CHARS_MAX = 200
PROGRAM = Sender(how="program")
"""The program that embeds a fleet, for a policy."""
ELSEWHERE_S = 30.0
"""How long the answer of an agent on another node is waited for, unless a call says otherwise."""
LETTER_ID = re.compile(r"(\d{1,4})\.\d+\.\d+", re.ASCII)
AgentT = TypeVar("AgentT", bound=Agent)


class NodeStatus(Struct, frozen=True):
    """Where a node stands, for people and for metrics."""

    fleet: str
    agents: int
    heads: list[Head]
    events: int
    owed: int
    waiting: int
    dead_letters: int
    stopped: dict[str, str]
    journal_bytes: int
    counters: dict[str, int]
    link: LinkStatus = LinkStatus()
    company: ReplicationStatus = ReplicationStatus()
    copies: list[CopyStanding] = []
    """How far the copies of the journal elsewhere are, store by store."""
    at_rest: list[str] = []
    """Agents of the journal that this node is not told to run, sorted: they take nothing and do nothing."""
    troubles: list[str] = []
    """What does not work at present and does not mend itself, in sentences that say what to do."""


class RunningModels(Protocol):
    """The models of a node, as far as status and metrics go: a service, or several with what they follow."""

    @property
    def waiting(self) -> int: ...

    @property
    def abandoned(self) -> int: ...

    def loaded(self, model: str) -> list[str]: ...

    def troubles(self) -> list[Trouble]: ...


class RunningPolicy(Protocol):
    """The policy of a node, as far as status and metrics go."""

    def counters(self) -> dict[str, int]: ...

    def troubles(self) -> list[Trouble]: ...


class Live:
    """The handle of a running fleet."""

    def __init__(
        self,
        host: Host,
        entropy: Entropy,
        devices: Devices | None = None,
        *,
        link: BusLink | None = None,
        peers: PeerProcesses | None = None,
        replication: Replication | None = None,
        feedings: RingReaders | None = None,
        copies: Callable[[], list[CopyStanding]] = list,
        views: ViewService | None = None,
        references: ReferenceTeller | None = None,
        models: RunningModels | None = None,
        policy: RunningPolicy | None = None,
    ) -> None:
        self._host = host
        self._devices = devices
        self._entropy = entropy
        self.recovered = host.recovered
        self.link = link
        """The node's side of the bus; None without one."""
        self.peers = peers
        """The owners of the other shards of this fleet; None where this one has all."""
        self.replication = replication
        """The node's side of those it shares state with, and of its ledger."""
        self.feedings = feedings
        """The rings it is fed from."""
        self.copies = copies
        """How far the copies of the journal are."""
        self.views = views
        """The read models of the fleet; None where it has none."""
        self.references = references
        """Tells the store of blobs what the log refers to; None where nobody does."""
        self.models = models
        """The models that its agents ask; None where they ask none."""
        self.policy = policy
        """What is asked before its agents decide; None where nobody is."""

    @property
    def host(self) -> Host:
        """The host underneath, for what is built on the runtime: the control endpoint, bridges, metrics."""
        return self._host

    async def send(
        self,
        address: str,
        command: Command,
        *,
        command_id: str | None = None,
        client: str = "",
        within_s: float | None = None,
        trace: TraceContext | None = None,
        sender: Sender = PROGRAM,
    ) -> Verdict:
        """Sends a command and waits for its durable answer. With the same `command_id` it is done at most once.

        Ids are remembered in shares, one for each `client`: a program that sends for others names them. A command for
        an agent that another node runs is kept here and sent on until it is answered or expires. Its answer is waited
        for `within_s` seconds, 30 without it; then NoAnswer is raised, with the id: send it again with that to learn
        what became of it. `trace` is the trace that it belongs to, if it is not the program's current OpenTelemetry
        span. `sender` is who sends it, for a policy.
        """
        address = self._own(address)
        if command_id is None:
            command_id = new_command_id(self._host.clock.wall_ns(), self._entropy.token(RANDOM_BYTES))
        if within_s is None and self._host.intake.is_elsewhere(address, command_id):
            within_s = ELSEWHERE_S
        trace = trace or read_context(*active_context())
        answer = self._host.intake.ask(address, command, command_id, client=client, trace=trace, sender=sender)
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            raise NoAnswer(
                f"{address}: no answer within {within_s:g} s; the command is on its way, or expires: ask again with "
                f"command_id={command_id!r}",
                command_id=command_id,
            ) from None

    async def observe(self, address: str, event: Event) -> None:
        """Tells an agent what was observed; returns when it is kept as its type promises."""
        await self._host.intake.observe(self._own(address), event, trace=read_context(*active_context()))

    @property
    def blobs(self) -> Blobs:
        """Large payloads by reference: the store of this node."""
        if self._host.blobs is None:
            raise ConfigError("this node was made without a store for blobs; give its host one in `Connections`")
        return self._host.blobs

    async def put(
        self,
        source: Source,
        *,
        media_type: str = "application/octet-stream",
        again: bool = False,
        reader: bytes | str | None = None,
    ) -> Blob:
        """Stores bytes, a file (a Path) or the chunks of an async iterator, before you send what refers to them.

        The same bytes are stored once. `again` replaces what is there, which was found damaged. With the public key of
        a `reader` only that one can open them: `blobs.open`.
        """
        return await self.blobs.put(source, media_type=media_type, again=again, reader=reader)

    async def fetch(self, blob: Blob) -> bytes:
        """The bytes of a blob, verified; at most 64 MiB. `blobs.stream` gives them in chunks."""
        return await self.blobs.fetch(blob)

    async def fetch_to(self, blob: Blob, path: Path) -> Path:
        """Fetches a blob of any size into a file, verified; goes on where an earlier fetch was interrupted."""
        return await self.blobs.fetch_to(blob, path)

    async def deliver(self, envelope: bytes) -> None:
        """Takes an envelope, or a column batch for compiled agents; returns when all of it is durable, so that the
        sender may forget it."""
        if is_batch(envelope):
            await self._host.columns.deliver(envelope)
        else:
            await self._host.intake.deliver(envelope)

    async def enroll(self, kind: str | type[Agent], names: Sequence[str], *, sender: Sender = PROGRAM) -> Roster:
        """Gives compiled agents their numbers, durably, and returns what a producer needs to make records for them.

        Agents that have a number keep it. It does not have to be called: an agent is enrolled with its first input; but
        who sends batches must know the numbers.
        """
        return await self._host.columns.enroll(_kind_name(kind), names, sender)

    def roster(self, kind: str | type[Agent]) -> Roster:
        """How records for this compiled kind are made at present; without the places of any agents."""
        return self._host.columns.roster(_kind_name(kind))

    @overload
    def query(self, address: str) -> Any: ...

    @overload
    def query(self, address: str, kind: type[AgentT]) -> AgentT: ...

    def query(self, address: str, kind: type[Agent] | None = None) -> Any:
        """The durable state of an agent, as a copy. One that has had no input is in its first state.

        Given the class as well, or a base of it such as `WorkflowRun`, the type checker knows what comes back. Raises
        NotAssigned for one that runs elsewhere; of one at rest the state is what it was.
        """
        address = self._own(address)
        host = self._host
        shard = host.shards[host.intake.shard_of(address)]
        plan = shard.state.plan_at(address)
        if kind is not None and kind not in plan.cls.__mro__:
            raise UnknownKind(f"{address} is a {plan.kind}, not a {_kind_name(kind)}; ask for that")
        agent = host.durable_image(address)
        if agent is None:
            host.assignment.check(address)
        return shard.state.new_agent(address, plan) if agent is None else plan.copy(agent)

    def watch(
        self,
        topic: str = ANY_TOPIC,
        *,
        kind: type[Event] | type[Agent] | None = None,
        agent: str | None = None,
        after: str | None = None,
        since: datetime | str | None = None,
        latest: bool = False,
    ) -> Watching:
        """What the agents of this node publish, read from its log: `async for heard in live.watch("Cart/+/place")`.

        A topic is the agent's kind, its name and what it calls the topic, `+` for any of them, `#` for all that
        follow. With `kind`, an event class, only its events, made from it; or an agent class, or `agent`, an address.
        It begins now; or behind `after`, that of an event, or "start"; or with what was published `since` a time; or
        with the `latest` event of each topic. Nothing is missed or repeated. What retention has dropped is said: LogCut
        is raised once, or, without `after`, the node is in `truncated`.
        """
        node = "" if self.link is None else self.link.node
        topics, event = read_watched(topic, kind, agent and self._own(agent))
        return LocalWatching(self._host, node, topics, event, read_start(after, since, latest))

    def agents(self, kind: str | type[Agent] | None = None) -> list[str]:
        """The addresses of all agents that are on disk, sorted; of one kind, if given."""
        name = None if kind is None else _kind_name(kind)
        if name is not None and name not in self._host.declaration.plans:
            raise UnknownKind(f"{name!r} is no agent kind here; there are {', '.join(self._host.declaration.plans)}")
        found: list[str] = []
        for state in (shard.state for shard in self._host.shards):
            for compiled in state.tables:
                if name in (None, compiled):
                    found += durable_addresses(state, compiled)
            found += (
                address
                for address in state.agents
                if (name is None or address.startswith(f"{name}/")) and self._host.durable_image(address) is not None
            )
        return sorted(found)

    def view(self, view: type[V]) -> ViewQuery[V]:
        """A question to a read model: `await live.view(ZoneLoad).where(zone="7").all()`."""
        if self.views is None:
            raise ConfigError(f"fleet {self._host.declaration.name!r} has no views; list them in Fleet(…, views=[…])")
        self.views.projector(plan_of(view))
        return ViewQuery(view, self.views)

    def ledger(self, ledger: Ledger[EntryT]) -> LedgerReader[EntryT]:
        """What is in a ledger of the fleet's own; ask it with `entries`."""
        services = None if self.replication is None else self.replication.entries
        if services is None or ledger.name not in services.services:
            raise ConfigError(f"fleet {self._host.declaration.name!r} has no {ledger!r} here; list it in ledgers=[…]")
        return LedgerReader(ledger, services.services[ledger.name])

    def devices(self) -> list[DeviceStatus]:
        """How each sensor and control loop of this node is doing."""
        return [] if self._devices is None else self._devices.standing()

    def members(self) -> list[Member]:
        """Who is in the fleet, this node included, with what each can do; empty without a bus or mesh."""
        if self.link is not None:
            return self.link.members()
        return [] if self.replication is None else self.replication.members()

    def dead_letters(self) -> list[DeadLetter]:
        """Inputs that failed, oldest first, as the disk has them."""
        host = self._host
        return [letter for shard in host.shards for letter in shard.state.letters_at(self._durable(shard))]

    def stopped(self) -> dict[str, str]:
        """Agents that their supervision has stopped, and why, as the disk has them."""
        found: dict[str, str] = {}
        for shard in self._host.shards:
            found |= shard.state.stopped_at(self._durable(shard))
        return found

    def retry(self, letter: DeadLetter) -> None:
        """Gives a dead letter to its agent once more, as the next input."""
        self._put(self._shard_of_letter(letter), LetterRetried(letter.letter))

    def drop(self, letter: DeadLetter) -> None:
        """Gives a dead letter up."""
        self._put(self._shard_of_letter(letter), LetterDropped(letter.letter))

    def resume(self, address: str, by: str) -> None:
        """Lets an agent go on that its supervision has stopped. `by` says in the log who wanted it."""
        address = self._own(address)
        self._put(self._host.intake.home_of(address), ResumeAgent(address, printable(by, BY_CHARS_MAX)))

    def enroll_signer(self, algorithm: int, public_key: bytes) -> None:
        """Lets another key sign from the next commit on. Raises TrustError for one that may not."""
        self._host.intake.check_open()
        key = _key(algorithm, public_key)
        check_enrolment(self._host.shards.signers.state.signers, self._host.verifier, key)
        self._put(self._host.shards.signers.state.shard, EnrollSigner(*key, PROGRAM))

    def revoke_signer(self, algorithm: int, public_key: bytes, last_position: int) -> None:
        """A key's signatures count up to this position and no further. Raises WrongKey, also for our own."""
        self._host.intake.check_open()
        key, last = _key(algorithm, public_key), last_position
        if not isinstance(last, int):
            raise ConfigError(f"last_position={last!r}: give the number of the last position that counts")
        state = self._host.shards.signers.state
        check_revocation(state.signers, key, self._host.key, last, state.position)
        self._put(state.shard, RevokeSigner(*key, last))

    def _own(self, address: str) -> str:
        """An address as nodes of this fleet write it."""
        return checked_address(address, self._host.declaration.name)

    def _shard_of_letter(self, letter: object) -> int:
        found = LETTER_ID.fullmatch(letter.letter) if isinstance(letter, DeadLetter) else None
        if found is None or int(found[1]) not in self._host.shards:
            raise ConfigError(f"{letter!r} is no dead letter of this node; give one of those that dead_letters() lists")
        return int(found[1])

    def _put(self, shard: int, one: Input) -> None:
        self._host.intake.check_open()
        self._host.intake.put_inside(shard, one)

    def _durable(self, shard: Shard) -> int:
        """The position up to which this shard is on disk."""
        return self._host.durable_position(shard.state.shard)

    def standing(self) -> NodeStatus:
        """Where this node stands: what is on disk, and what the counters of this run say beside it."""
        host = self._host
        counters: dict[str, int] = {}
        parts: list[Any] = [host.mailbox.counters, host.ingress.counters, host.columns.counters, host.tells.counters]
        parts += [host.effector.counters, host.batched_actuators.counters, host.housekeeper.counters, host.raw.counters]
        for counted in (*(shard.counters for shard in host.shards), *parts):
            for name, value in structs.asdict(counted).items():
                counters[name] = counters.get(name, 0) + value
        parts = [self.link, self.replication, self.peers, self.feedings, self.views, self._host.spans]
        services = [part for part in (*parts, self._host.spans, self.policy) if part is not None]
        for service in (*(() if self._devices is None else (self._devices,)), *services):
            counters |= service.counters()
        return NodeStatus(
            fleet=host.declaration.name,
            agents=sum(len(shard.state.agents) + sum(shard.state.enrolled.values()) for shard in host.shards)
            - self._agents_not_kept_yet(),
            heads=self._heads(),
            events=sum(shard.state.events_count for shard in host.shards) - self._events_not_kept_yet(),
            owed=sum(
                owed.count - owed.count_after(self._durable(shard))
                for shard in host.shards
                for owed in (shard.state.outbox, shard.state.blocks)
            ),
            waiting=host.mailbox.items,
            dead_letters=len(self.dead_letters()),
            stopped=self.stopped(),
            journal_bytes=self._journal_bytes(),
            counters=counters,
            link=LinkStatus() if self.link is None else self.link.standing(),
            company=ReplicationStatus() if self.replication is None else self.replication.standing(),
            copies=self.copies(),
            at_rest=sorted(address for shard in host.shards for address in shard.state.at_rest),
            troubles=[str(trouble) for trouble in self.troubles()],
        )

    def troubles(self) -> list[Trouble]:
        """What does not work at present, in sentences that say what to do. Costs little: ask as often as you like."""
        parts = [self.link, self.replication, self.peers, self.feedings, self.views, self._devices, self.models]
        services = [part for part in (*parts, self.policy) if part is not None]
        return [
            *coded("copies-behind", (copy.trouble for copy in self.copies())),
            *self._host.housekeeper.troubles,
            *self._host.batched_actuators.troubles(),
            *self._host.raw.troubles(),
            *self._host.stuck_runs.troubles(),
            *(() if self.references is None else self.references.troubles()),
            *(trouble for service in services for trouble in service.troubles()),
        ]

    def _agents_not_kept_yet(self) -> int:
        """How many agents have had their first input in a commit that is not on disk yet."""
        images = [ready.touched for ready in self._host.committer.in_doubt]
        images += [shard.open_images for shard in self._host.shards]
        return sum(1 for touched in images for image in touched.values() if image is None)

    def _events_not_kept_yet(self) -> int:
        return sum(ready.sealed.events for ready in self._host.committer.in_doubt)

    def _heads(self) -> list[Head]:
        """The heads as the journal has them; once it cannot be asked any more, the last that were made."""
        states = [shard.state for shard in self._host.shards]
        try:
            kept = {head.shard: head for head in self._host.journal.heads()}
        except StigmergyError:
            return [state.head for state in states]
        return [kept.get(state.shard, Head(state.shard, 0, 0, state.genesis)) for state in states]

    def _journal_bytes(self) -> int:
        """What the journal takes; 0 once it cannot be asked any more, which is when people look at everything else."""
        try:
            return self._host.journal.size().bytes_used
        except StigmergyError:
            return 0

    @property
    def failure(self) -> Exception | None:
        """Why the node has stopped by itself; None while it runs."""
        return self._host.failure

    async def wait_failure(self) -> Exception:
        """Waits until the node stops by itself."""
        return await self._host.wait_failure()


def _kind_name(kind: object) -> str:
    return kind if isinstance(kind, str) else str(getattr(kind, "__agent_kind__", kind))


def _key(algorithm: object, public_key: object) -> tuple[int, bytes]:
    if not (isinstance(algorithm, int) and isinstance(public_key, bytes)):
        raise TrustError("a signer is named by the number of its algorithm (1 is Ed25519) and the bytes of its key")
    return int(algorithm), public_key
