"""What a node answers, a type for each request. The fields are the keys of docs/control.md, in the order of the wire.

A key that only some nodes have is UNSET and absent elsewhere; a key that is null has None. Every other key is always
there. A new key has a default, because nodes of an earlier version do not send it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from stigmergy.audit.listing import Cause, Owing
from stigmergy.audit.verification import Problem
from stigmergy.claims.service import ClaimsStatus
from stigmergy.control.agent_fields import ClaimFieldReply, SharedFieldReply
from stigmergy.crdt.anti_entropy.context import SharedStatus
from stigmergy.ledgers.records import EntriesStatus
from stigmergy.metrics.samples import Samples
from stigmergy.uplink.messages import UplinkStatus

T = TypeVar("T", bound=Struct)


def filled(kind: type[T], source: object, **given: Any) -> T:
    """A reply that describes `source`: its fields have the values of the same name, bytes as hex, or what is given."""
    for name in kind.__struct_fields__:
        if name not in given and hasattr(source, name):
            value = getattr(source, name)
            given[name] = value.hex() if isinstance(value, bytes) else value
    return kind(**given)


# ---------------------------------------------------------------------- parts of a fleet


class Part(Struct, frozen=True, kw_only=True):
    """Whose answer an item is, if the owners of several shards were asked."""

    shard: int | UnsetType = UNSET


class MissingPart(Part, frozen=True, kw_only=True):
    """A shard or a node without an answer."""

    node: str | UnsetType = UNSET
    why: str


# ---------------------------------------------------------------------- agents


class SendReply(Struct, frozen=True):
    """What became of a command."""

    accepted: bool
    position: int | None
    """Of the commit; None if it was refused."""
    reason: str | None
    """Why it was refused; None if it was accepted."""
    pending: bool | UnsetType = UNSET
    """True if it is on its way to another node, and not answered yet: `reason` says where it is."""
    after: str | UnsetType = UNSET
    """The position with its shard and log, `0@5f3a9c1e:41`: what to give to a view so that it has seen this."""


class CommandReply(Part, frozen=True, kw_only=True):
    """A command for an agent that another node runs, or tells for one."""

    agent: str
    command_id: str
    type: str = ""
    """Its tag; empty for one that was answered."""
    asked: str = ""
    """When it came here."""
    expires: str = ""
    answered: str = ""
    """When its answer came here; empty while it is on its way."""
    accepted: bool | None = None
    """None while it is on its way."""
    standing: str = ""
    """Where it is, or why it was refused."""
    tells: int = 0
    """How many tells for the agent are not acknowledged, of which this is the first; 0: it is a command."""


class ObserveReply(Struct, frozen=True):
    """An observed event was stored as its type promises."""

    observed: bool = True


class ObservedOutcome(Struct, frozen=True, omit_defaults=True):
    """What became of one of many observations: it was kept as its type promises, or it was refused."""

    observed: bool
    error: str = ""
    kind: str = ""
    """The name of the error's class."""


class ObserveManyReply(Struct, frozen=True):
    """What became of many observations, in their order."""

    outcomes: list[ObservedOutcome]


class SeenAgent(Struct, frozen=True):
    """An agent at some moment."""

    agent: str
    known: bool
    """Whether it had any input."""
    shard: int
    position: int
    time: str | None
    stopped: str | None
    """Why it is stopped."""
    state: dict[str, Any]


class StateReply(SeenAgent, frozen=True):
    """The durable state of an agent, with who wrote to its shared fields and what it has claimed, if it has any."""

    shared: list[SharedFieldReply] | UnsetType = UNSET
    claims: list[ClaimFieldReply] | UnsetType = UNSET


class KindNames(Struct, frozen=True):
    """What agents of a kind understand: messages with the names of their fields."""

    commands: dict[str, list[str]]
    events: dict[str, list[str]]


class ViewReply(Struct, frozen=True):
    """A page of rows. `next` is the cursor of the next page; `positions` say how far the logs are in the rows."""

    view: str
    rows: list[dict[str, Any]]
    next: str | None
    positions: dict[str, int]
    missing: list[MissingPart] = []
    """Nodes with logs of their own, whose events are not in these rows."""


class ViewStatusReply(Struct, frozen=True):
    """Where a view stands: commits that are not in it yet, whether its rows are made anew, and what is wrong."""

    view: str
    keys: list[str]
    fields: dict[str, str]
    behind: int
    events: int
    rows_written: int
    building: bool
    trouble: str = ""
    late: int = 0
    waiting: int = 0
    unmatched: int = 0
    dropped: int = 0


class ViewsReply(Struct, frozen=True):
    """The views of a fleet."""

    views: list[ViewStatusReply]
    missing: list[MissingPart] = []
    """Nodes with logs of their own, whose events are not in these views."""


class NamesReply(Struct, frozen=True):
    """The agent kinds, and the first agents with the prefix that was asked for."""

    kinds: dict[str, KindNames]
    agents: list[str]
    missing: list[MissingPart] = []  # shards that did not answer: their agents are not among these


class ListedAgent(Struct, frozen=True):
    """An agent of a listing, with its durable state."""

    agent: str
    shard: int
    stopped: str | None
    state: dict[str, Any]


class AgentsReply(Struct, frozen=True):
    """A page of agents, sorted by address."""

    agents: list[ListedAgent]
    next: str | None  # what to give as `after` for the next page; None at the end
    missing: list[MissingPart] = []
    """Shards and nodes that did not answer: their agents are not listed."""


class EventReply(Struct, frozen=True, omit_defaults=True):
    """An event that was kept."""

    shard: int
    position: int
    index: int
    time_ns: int
    agent: str
    type: str
    fields: Any
    place: tuple[float, float] | UnsetType = UNSET
    """Where it is: by the fields `PLACES` of the event, or else of the agent's state when it was read."""
    kept_after_ns: int = 0  # so much later than it happened its commit was made


class EventsReply(Struct, frozen=True):
    """The next events, per shard in order, and the positions to ask with for those behind them."""

    events: list[EventReply]
    positions: str
    missing: list[MissingPart] = []
    """Nodes with logs of their own, whose events are not among these."""


class SpanReply(Struct, frozen=True):
    """From when to when a log goes; null for an empty one. `mode` is live, or replay if nobody writes to it."""

    mode: str
    first_ns: int | None
    last_ns: int | None
    node: str = ""  # empty without a bus


class PositionsReply(Struct, frozen=True, omit_defaults=True):
    """Where agents are, as arrays of equal length in little endian, and what to ask with for the next answer.
    An agent has a number (u32). Its place is f64: longitude and latitude, or x and y. Headings are u8, 256ths of a turn
    clockwise from north; colours u8, places in `palette`, which has all. Names of the numbers from `first` on and
    colours are told once; with `is_new` all told before is void. `time_ns` is of the newest commit, `gone` are nowhere,
    `drawn` is new GeoJSON. With `more`, not all fitted: ask again. `missing`: nodes to ask as well."""

    after: str
    time_ns: int
    numbers: bytes = b""
    xs: bytes = b""
    ys: bytes = b""
    headings: bytes = b""
    colours: bytes = b""
    first: int = 0
    names: list[str] = []
    palette: list[str] = []
    gone: list[int] = []
    drawn: list[tuple[int, Raw]] = []
    is_new: bool = False
    more: bool = False
    troubles: list[str] = []
    missing: list[MissingPart] = []


class ExplainedEffect(Owing, frozen=True):
    """An effect of an event. `settled`: it was carried out or given up, and is not owed any more."""

    settled: bool = False


class ExplainedEntry(Struct, frozen=True):
    """One entry of the log of an agent: an event, an answered command, or an effect without an event."""

    kind: str
    shard: int
    position: int
    index: int
    time: str
    type: str
    fields: Any
    cause: Cause
    effects: list[ExplainedEffect]
    refused: str | None = None


class ExplainReply(SeenAgent, frozen=True):
    """How an agent came to be as it is: its state, and the entries of its log before, oldest first."""

    entries: list[ExplainedEntry]


class WhereReply(Struct, frozen=True):
    """Which node runs an agent, and why."""

    agent: str
    node: str | None
    """What it is called on the bus; None if that is not known, or it is this node and has no bus."""
    how: str
    """`declared`, `everything`, `computed`, `foreign` or `nobody`."""
    why: str
    here: bool
    """Whether the node that answers runs it."""
    online: bool = False
    """Whether the node that runs it is here now."""
    shard: int | None = None
    epoch: int | None = None
    owner: str | None = None
    """Of a fleet on workers: the worker that owns the shard."""


class BlobReply(Struct, frozen=True):
    """The bytes of an object, null if no node has it, and the nodes that may have it and are away."""

    data: bytes | None
    away: list[str]


class LetterReply(Struct, frozen=True):
    """A dead letter; one of another node has its name behind the id: `0.4711.2@south`."""

    letter: str
    agent: str
    source: str
    type: str
    fields: Any
    error: str


class LetterTakenReply(Struct, frozen=True):
    """A dead letter was retried or dropped."""

    letter: str
    agent: str
    retried: bool
    failed_again: bool
    new_letter: str = ""
    """The id of the input from now on, if it failed again."""


class ResumeReply(Struct, frozen=True):
    """A stopped agent runs again."""

    agent: str
    resumed: bool = True


# ---------------------------------------------------------------------- the node


class HeadReply(Struct, frozen=True):
    """Where the log of a shard ends."""

    shard: int
    position: int
    epoch: int
    digest: str


class SignerReply(Struct, frozen=True):
    """A key that may sign, or may have signed until it was revoked."""

    algorithm: int
    public_key: str
    revoked_after: int | None
    signs_now: bool


class RecoveryReply(Struct, frozen=True):
    """What the start of a node found. `snapshots` has the position of each shard's."""

    commits: int
    events: int
    signatures: int
    snapshots: dict[str, int]
    passed_over: list[str]


class LinkReply(Struct, frozen=True):
    """The link of a node to its bus."""

    state: str = "none"
    why: str = ""
    owed: int = 0
    """To publish."""
    members: int = 0
    uplink: UplinkStatus | UnsetType = UNSET
    tells: int = 0
    """That agents of other nodes have not acknowledged."""


class MemberReply(Struct, frozen=True):
    """A node of the fleet."""

    name: str
    state: str
    """alive; away if it has left; unheard while this node has no link to the bus"""
    since: str | None
    """When it started; of one that is away the time since when it is so at the latest."""
    version: str = ""
    kinds: list[str] = []


class CopyReply(Struct, frozen=True):
    """How far the copies of a journal in one store are."""

    store: str
    copies: int
    bytes_copied: int
    failures: int
    commits: int
    points: int
    trouble: str
    made: str
    """When the last one was made; empty for none since the start."""


class ProcessReply(Struct, frozen=True):
    """The owner of one shard, as it last reported; None before its first report."""

    process: int
    """The number of the shard, counted from 1."""
    first_shard: int
    last_shard: int
    pid: int | None = None
    host: str | None = None
    up_s: float | None = None
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    agents: int | None = None
    events: int | None = None
    owed: int | None = None
    waiting: int | None = None
    journal: str | None = None
    journal_bytes: int | None = None
    metrics_url: str | None = None


class StatusReply(Struct, frozen=True, kw_only=True):
    """Where a node stands, or all workers of a fleet together: then counts are totals."""

    fleet: str
    version: str
    pid: int | None
    """None for a fleet on workers, which have no process in common."""
    host: str | UnsetType = UNSET
    up_s: float
    cpu_s: float
    memory_peak_bytes: int
    journal: str
    agents: int
    events: int
    commits: int
    owed: int
    waiting: int
    dead_letters: int
    stopped: dict[str, str]
    """Agents that supervision has stopped, with the reason."""
    at_rest: list[str] | UnsetType = UNSET
    """Agents of the journal that this node does not run."""
    journal_bytes: int
    heads: list[HeadReply]
    signers: list[SignerReply]
    recovered: RecoveryReply
    counters: dict[str, int]
    troubles: list[str]
    link: LinkReply
    shared: SharedStatus | UnsetType = UNSET
    claims: ClaimsStatus | UnsetType = UNSET
    ledgers: list[EntriesStatus] | UnsetType = UNSET
    processes: list[ProcessReply] | UnsetType = UNSET
    copies: list[CopyReply] | UnsetType = UNSET
    metrics: Samples | UnsetType = UNSET
    """What it measures: values, and histograms with p50 and p99; absent from nodes of an earlier version."""
    metrics_url: str = ""
    """Where its page for Prometheus is; empty if it has none."""

    @property
    def is_on_workers(self) -> bool:
        """Whether this is a fleet on several workers."""
        return self.pid is None

    @property
    def parts(self) -> list[ProcessReply]:
        """The owners of the shards of a fleet on workers."""
        return self.processes or []

    @property
    def is_unanswered(self) -> bool:
        """Whether no worker of a fleet has ever answered."""
        return self.is_on_workers and all(one.pid is None for one in self.parts)


class StopReply(Struct, frozen=True):
    """The node drains and ends."""

    stopping: bool = True


# ---------------------------------------------------------------------- the log


class LogProgress(Struct, frozen=True, kw_only=True):
    """An item of `verify` and `export` between the others: how many commits were read, of how many."""

    commits: int
    of: int
    fleet: str | UnsetType = UNSET
    """Whose log it is; only of an export."""
    incarnation: int | UnsetType = UNSET


class VerifiedHead(HeadReply, frozen=True):
    """Where the log of a shard ends, and where it begins."""

    first: int


class VerifiedSigner(Struct, frozen=True):
    """A key and what it has signed."""

    algorithm: int
    public_key: str
    enrolled_at: int
    revoked_after: int | None
    signatures: int
    fingerprint: str | UnsetType = UNSET
    """Only of `stigmergy log verify`; nodes do not send it."""


class VerifyReply(Struct, frozen=True):
    """What a verification found: the last item of `verify`."""

    journal: str
    sound: bool
    commits: int
    events: int
    signatures: int
    snapshots: int
    snapshots_unfinished: int
    heads: list[VerifiedHead]
    signers: list[VerifiedSigner]
    problems: list[Problem]


class FlightPiece(Struct, frozen=True):
    """The next bytes of a flight log, base64 on the wire."""

    commits: int
    of: int
    data: bytes


class CommitPiece(Struct, frozen=True):
    """Some events of a commit, a msgpack CapturedCommit (docs/control.md). The first piece says what the log has."""

    data: bytes = b""
    more: bool = False
    """Whether the next piece has more events of the same commit."""
    fleet: str = ""
    first: dict[int, int] = {}
    """The first position that each shard still has."""
    end: dict[int, int] = {}
    """The last one."""


class HoldReply(Struct, frozen=True):
    """A hold on the log."""

    hold: int
    open: bool
    agent: str
    since: str | None
    reason: str
    by: str
    set: str
    cleared: str | None
    cleared_by: str
    cleared_why: str


class HoldsReply(Struct, frozen=True):
    """All holds, cleared ones included."""

    holds: list[HoldReply]


class EnrolReply(Struct, frozen=True):
    """A key may sign."""

    public_key: str
    enrolled: bool = True


class RevokeReply(Struct, frozen=True):
    """A key's signatures count up to a position."""

    public_key: str
    revoked_after: int


# ---------------------------------------------------------------------- shared objects and claims


class ReplicaReply(Struct, frozen=True):
    """A replica of a shared object."""

    replica: str
    counter: int
    agent: str | None  # None for those of other nodes
    retired: bool


class ObjectReply(Part, frozen=True, kw_only=True):
    """A shared object as a node holds it."""

    object: str
    agents: list[str]
    live: int
    live_bytes: int
    digest: str
    waiting: int
    diverged: bool
    peers: list[str]
    in_step: list[str]
    behind_s: float | UnsetType = UNSET  # how long one of the others is not, if that is measured
    unheard: list[str] = []
    """Members that hold it, or have not said what they hold, and from which nothing came for some rounds."""
    replicas_count: int
    replicas: list[ReplicaReply]


class QuarantineReply(Part, frozen=True, kw_only=True):
    """A key from which nothing is taken any more."""

    key: str
    node: str | None
    object: str
    replica: str | None
    why: str
    since: str


class LiftReply(Struct, frozen=True):
    """A key takes part again."""

    key: str
    lifted: bool = True


class RetireReply(Struct, frozen=True):
    """A replica was declared dead."""

    object: str
    replica: str
    retired: bool = True


class ClaimantReply(Struct, frozen=True):
    """Who holds a resource or waits for it; only `claimant` if its entry was truncated."""

    claimant: str
    agent: str | None
    claim: str | None
    key: str | None
    any_of: list[str] | UnsetType = UNSET
    """The resources of which any one would do."""
    incarnation: int | UnsetType = UNSET
    """Of a waiting claimant: the journal that its node had. A node without its journal is another claimant."""
    queued_at: int | UnsetType | None = UNSET
    """Of a waiting claimant: the position of the entry that queued it; null if it was truncated."""
    waits_s: float | UnsetType | None = UNSET
    """How long ago the node read that."""


class BeliefReply(Struct, frozen=True):
    """What an agent of the node may act on."""

    agent: str
    claim: str
    holds: bool
    token: int | None
    left_s: float
    renews: bool
    asking: bool
    any_of: list[str] | UnsetType = UNSET


class ResourceReply(Struct, frozen=True):
    """A resource: what the ledger says up to `read_to`, and what agents of the node believe."""

    resource: str
    read_to: int
    holder: ClaimantReply | None
    token: int | None
    since: int | None
    for_s: float | None
    offered: ClaimantReply | None
    queue: list[ClaimantReply]
    believed: list[BeliefReply]


# ---------------------------------------------------------------------- streams


class StreamEnd(Struct, frozen=True):
    """The last line of a stream."""

    count: int
    missing: list[MissingPart] | UnsetType = UNSET
