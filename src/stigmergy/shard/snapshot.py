"""Snapshots: the state of a shard at one position, in parts, taken while the agents keep running.

A snapshot begins right after a commit is sealed. The tables are copied at once, the agents in portions between steps.
If an agent changes meanwhile, its old state is taken: the step keeps an image of everything it touches.

A *full* snapshot holds every agent, an *incremental* one those that changed since its base. Part 0 is the header with
the tables; each further part is a compressed list of agents. One digest covers all parts, and a later commit notes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.agent import carry_filled
from stigmergy.agents.codec import UNDECODABLE, canonical_bytes, encode, without_empty_end
from stigmergy.agents.columns import read_layout
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import DefinitionError, FoldMismatch, JournalCorrupt, JournalForeign
from stigmergy.shard.commit import HashAlgorithm, MarkMoved, SnapshotNote
from stigmergy.shard.memory import DeadLetter, Remembered
from stigmergy.shard.outbox import Block, Pending
from stigmergy.shard.state import EnrolledSigner, ShardState
from stigmergy.shard.timers import PendingTimer
from stigmergy.shard.tracing import OwedTrace

SNAPSHOT_FORMAT = 1
AGENTS_PER_PART = 200
PART_BYTES = 4 * 1024 * 1024
"""A part with so many bytes of agents gets no more of them."""
PART_BYTES_MAX = 64 * 1024 * 1024
TABLE_PART = b"STGT"
"""Begins a part with rows of compiled agents; other parts are compressed, and begin otherwise."""
_CONTEXT = "stigmergy 2026 snapshot parts"
_MISSING = object()


class SnapshotTables(Struct, array_like=True, frozen=True):
    """Everything a shard knows beside its agents."""

    shard: int
    position: int
    digest: bytes
    epoch: int
    time_ns: int
    events_count: int
    marks: list[MarkMoved]
    sent: dict[str, int]
    owed: list[Pending]
    timers: list[PendingTimer]
    answers: list[Remembered]
    letters: list[DeadLetter]
    failures: list[tuple[str, list[int]]]
    stopped: list[tuple[str, str]]
    signers: list[EnrolledSigner]
    declared: list[tuple[bytes, bytes]] = []
    """Layouts and templates of compiled agents."""
    blocks: list[Block] = []
    actions: list[tuple[str, int, int]] = []
    rosters: dict[str, list[str]] = {}
    """Names of agents that were compiled once and are not any more."""
    unlisted: dict[str, list[str]] = {}
    """Names of compiled agents that have a number and are in no `AgentsEnrolled` yet."""
    clients: list[str] = []
    """Who got the answers, one for each; empty if it was always the embedding program."""
    floors: list[tuple[str, str, int]] = []
    """Agent, client, and up to which time (ms since 1970) ids of that client are forgotten; without names: of all that
    are not listed."""
    digests: list[bytes] = []
    """What tells the commands behind `answers` from others, one for each; empty if none is known."""
    traces: list[tuple[str, int, OwedTrace]] = []
    """By sink and sequence, the traces of what is owed."""


class KindVersion(Struct, array_like=True, frozen=True):
    """The version of the fold that made an agent kind's states."""

    kind: str
    version: int
    layout: bytes


class SnapshotHeader(Struct, array_like=True, frozen=True):
    """Part 0."""

    format: int
    hash_algorithm: int
    base: int
    """The position of the snapshot that this one adds to; 0 for a full one."""
    base_digest: bytes
    """The digest of that one's parts, so that who vouches for this one vouches for both. Empty for a full one."""
    agents_count: int
    kinds: list[KindVersion]
    tables: SnapshotTables
    genesis: bytes
    """What the first commit of this log cites, so that also without that one it is known whose log it is."""


_TABLES_FIELDS_MIN = SnapshotTables.__struct_fields__.index("declared")
_header_decoder = msgspec.msgpack.Decoder(SnapshotHeader)
_table_parts = msgspec.msgpack.Decoder(tuple[str, bytes, bytes])
_agents_decoder = msgspec.msgpack.Decoder(list[tuple[str, bytes]])


def tables_of(state: ShardState) -> SnapshotTables:
    """The tables of a shard in a fixed order."""
    return SnapshotTables(
        shard=state.shard,
        position=state.position,
        digest=state.digest,
        epoch=state.epoch,
        time_ns=state.time_ns,
        events_count=state.events_count,
        marks=state.marks.all(),
        sent=state.outbox.sent(),
        owed=list(state.outbox.owed()),
        timers=state.timers.all(),
        answers=state.answers.all(),
        letters=state.letters.all(),
        failures=state.failures.all(),
        stopped=sorted(state.stopped.items()),
        signers=state.signers,
        declared=state.directory.declared(),
        blocks=list(state.blocks.owed()),
        actions=state.blocks.sent(),
        rosters=state.directory.names,
        unlisted=state.directory.unlisted,
        clients=state.answers.clients(),
        floors=state.answers.floors(),
        digests=state.answers.digests(),
        traces=state.traces.all(),
    )


def digest_of_state(state: ShardState) -> bytes:
    """One digest of everything: equal digests mean equal states, whatever way they were reached."""
    hasher = blake3(canonical_bytes(without_empty_end(tables_of(state), _TABLES_FIELDS_MIN)))
    for address in sorted(state.agents):
        hasher.update(encode((address, _bytes_of(state, address, state.agents[address]))))
    for kind in sorted(state.tables):
        hasher.update(encode((kind, state.tables[kind].digest())))
    return hasher.digest()


def _bytes_of(state: ShardState, address: str, agent: Any) -> bytes:
    """The bytes of an agent as it will be when it is read back: what cannot be read back is not written."""
    plan = state.plan_of[type(agent)]
    try:
        return canonical_bytes(plan.read_back(agent))
    except Exception as error:
        raise DefinitionError(
            f"{address}: its state cannot be written and read back{_culprit(plan, agent)} "
            f"({type(error).__name__}: {error}); fix the @evolve handler of {plan.cls.__qualname__} that assigns it "
            "and start again: the log is kept whole, and a replay rebuilds the state"
        ) from None


def _culprit(plan: AgentPlan, agent: Any) -> str:
    """Which field it is, for people: the first that cannot be written and read back on its own."""
    for name in plan.cls.__struct_fields__:
        value = getattr(agent, name)
        try:
            plan.restore(canonical_bytes(plan.cls(**{name: value})))
        except Exception:
            return f", because its field {name} holds what it is not declared for, a {type(value).__name__}"
    return ""


def kinds_of(plans: Mapping[str, AgentPlan]) -> list[KindVersion]:
    """The fold versions of all agent kinds, in a fixed order."""
    return [KindVersion(plan.kind, plan.version, plan.layout) for _, plan in sorted(plans.items())]


def fold_digest(plans: Mapping[str, AgentPlan]) -> bytes:
    """One value for the version of the whole fold."""
    return blake3(encode(kinds_of(plans))).digest(length=16)


class SnapshotWriter:
    """A snapshot under way. Begin it between `seal` and `step`, and give it the images of every commit after."""

    def __init__(
        self,
        state: ShardState,
        *,
        base: int = 0,
        base_digest: bytes = b"",
        changed: Iterable[str] | None = None,
    ) -> None:
        self._state = state
        self._images: dict[str, Any] = {}
        addresses = list(state.agents) if changed is None else list(changed)
        self._addresses: Iterator[str] = iter(addresses)
        self.base = base
        self.position = state.position
        self.chain = state.digest
        self.parts_count = 0
        self.size_bytes = 0
        self._hasher = blake3(derive_key_context=_CONTEXT)
        header = SnapshotHeader(
            format=SNAPSHOT_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            base=base,
            base_digest=base_digest,
            agents_count=len(addresses),
            kinds=kinds_of(state.plans),
            tables=tables_of(state),
            genesis=state.genesis,
        )
        self._header: bytes | None = zlib.compress(encode_header(header), 1)
        # Begun now, all of them: a table fixes its rows when its snapshot begins. Tables note what changes since the
        # last one that was begun; where that one was given up, and is not our base, they give out everything.
        full = not base or base != state.rows_since
        self._tables = [
            (kind, encode(table.layout), table.begin_snapshot(full=full)) for kind, table in state.tables.items()
        ]
        state.rows_since = state.position

    def keep_images(self, touched: Mapping[str, Any]) -> None:
        """Remembers agents as they were before a commit that was sealed since."""
        for address, image in touched.items():
            self._images.setdefault(address, image)

    def next_part(self, open_images: Mapping[str, Any]) -> bytes | None:
        """The next part's bytes, None after the last. `open_images` are those of the draft that is not sealed yet.

        Raises DefinitionError for an agent whose handlers have made a state that cannot be written: give up this
        snapshot; the log has everything.
        """
        if self._header is not None:
            body, self._header = self._header, None
            return self._count(body)
        agents = self._state.agents
        taken: list[tuple[str, bytes]] = []
        taken_bytes = 0
        for address in self._addresses:
            image = self._images.pop(address, _MISSING)
            if image is _MISSING:
                image = open_images.get(address, _MISSING)
            agent = agents[address] if image is _MISSING else image
            taken.append((address, _bytes_of(self._state, address, agent)))
            taken_bytes += len(taken[-1][1])
            if len(taken) == AGENTS_PER_PART or taken_bytes > PART_BYTES:
                break
        return self._count(zlib.compress(encode(taken), 1)) if taken else self._next_of_tables()

    def _next_of_tables(self) -> bytes | None:
        while self._tables:
            kind, layout, parts = self._tables[0]
            part = next(parts, None)
            if part is not None:
                return self._count(TABLE_PART + encode((kind, layout, part)))
            self._tables.pop(0)
        return None

    def note(self) -> SnapshotNote:
        """What the next commit says of the finished snapshot."""
        return SnapshotNote(
            position=self.position, digest=self._hasher.digest(), chain=self.chain, fold=fold_digest(self._state.plans)
        )

    def _count(self, body: bytes) -> bytes:
        self.parts_count += 1
        self.size_bytes += len(body)
        _digest_part(self._hasher, body)
        return body


def encode_header(header: SnapshotHeader) -> bytes:
    """The bytes of part 0, before they are compressed."""
    fields = [getattr(header, name) for name in SnapshotHeader.__struct_fields__]
    fields[SnapshotHeader.__struct_fields__.index("tables")] = without_empty_end(header.tables, _TABLES_FIELDS_MIN)
    return encode(fields)


def digest_of_parts(parts: Iterable[bytes]) -> bytes:
    """The digest that a note holds, computed from the stored parts."""
    digest = PartsDigest()
    for body in parts:
        digest.add(body)
    return digest.value()


class PartsDigest:
    """The same, part by part, for who cannot stay away for a whole snapshot."""

    def __init__(self) -> None:
        self._hasher = blake3(derive_key_context=_CONTEXT)

    def add(self, body: bytes) -> None:
        """Takes the next part."""
        _digest_part(self._hasher, body)

    def value(self) -> bytes:
        """The digest of the parts so far."""
        return self._hasher.digest()


def read_header(body: bytes) -> SnapshotHeader:
    """Decodes part 0."""
    try:
        header = _header_decoder.decode(_decompress(body))
    except UNDECODABLE as error:
        raise JournalCorrupt(f"the header of a snapshot does not decode ({error}); an older snapshot is used") from None
    if header.format != SNAPSHOT_FORMAT or header.hash_algorithm != HashAlgorithm.BLAKE3_256:
        raise JournalForeign(
            f"snapshot format {header.format} with hash algorithm {header.hash_algorithm}, this version reads format "
            f"{SNAPSHOT_FORMAT} with {HashAlgorithm.BLAKE3_256}; use the version that wrote it"
        )
    return header


def load_tables(state: ShardState, tables: SnapshotTables) -> None:
    """Puts the tables of a snapshot in place of the state's own. The agents of its parts are there already.

    Raises FoldMismatch for agents with numbers whose kind has become a compiled one: replay the log instead.
    """
    for kind in tables.rosters:
        if kind in state.tables:
            raise _other_engine(kind, "interpreted")
    state.position = tables.position
    state.digest = tables.digest
    state.epoch = tables.epoch
    state.time_ns = tables.time_ns
    state.events_count = tables.events_count
    for mark in tables.marks:
        state.marks.move(mark)
    state.outbox.restore(tables.sent, tables.owed)
    state.traces.restore(tables.traces)
    state.timers.restore(tables.timers)
    if tables.clients and len(tables.clients) != len(tables.answers):
        raise JournalCorrupt("the clients in a snapshot do not fit its answers; an older snapshot is used")
    if tables.digests and len(tables.digests) != len(tables.answers):
        raise JournalCorrupt("the digests in a snapshot do not fit its answers; an older snapshot is used")
    state.answers.restore(tables.answers, tables.clients, tables.floors, tables.digests)
    state.letters.restore(tables.letters)
    state.failures.restore(tables.failures)
    for address in state.stopped:  # by the snapshot that this one adds to
        state.stop_row(address, stopped=False)
    state.stopped = dict(tables.stopped)
    state.signers = list(tables.signers)
    state.directory.restore(tables.declared)
    state.directory.names = {kind: list(names) for kind, names in tables.rosters.items()}
    state.directory.unlisted = {kind: list(names) for kind, names in tables.unlisted.items()}
    state.blocks.restore(tables.actions, tables.blocks)
    state.rows_since = tables.position
    for address in state.stopped:
        state.stop_row(address, stopped=True)


def load_agents(state: ShardState, header: SnapshotHeader, part: bytes) -> None:
    """Puts the agents of one part into the state, carried over where their kind has a newer version.

    Raises FoldMismatch where a kind has changed and its `upcast_state` does not say how: replay the log instead.
    """
    if part.startswith(TABLE_PART):
        _load_rows(state, header, part)
        return
    written = {kind.kind: kind for kind in header.kinds}
    try:
        agents = _agents_decoder.decode(_decompress(part))
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a part of a snapshot does not decode ({error}); an older one is used") from None
    for address, body in agents:
        kind = address.partition("/")[0]
        plan = state.plans.get(kind)
        old = written.get(kind)
        if plan is None or old is None:
            raise FoldMismatch(f"the snapshot has agents of kind {kind!r}, which this fleet does not; add the class")
        if plan.engine is not None:
            raise _other_engine(kind, "interpreted")
        try:
            if (old.version, old.layout) == (plan.version, plan.layout):
                state.agents[address] = plan.restore(body)
            else:
                state.agents[address] = _carry_over(plan, old, address, body)
        except UNDECODABLE as error:
            raise FoldMismatch(
                f"{address}: its state in the snapshot is not one of today's {plan.cls.__qualname__} ({error}); raise "
                "version= and write upcast_state, or keep the whole log so that it can be replayed"
            ) from None


def _load_rows(state: ShardState, header: SnapshotHeader, part: bytes) -> None:
    """Puts the rows of one part into their table, which carries them over where the class has another version."""
    try:
        kind, layout, body = _table_parts.decode(part[len(TABLE_PART) :])
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a part of a snapshot does not decode ({error}); an older one is used") from None
    table = state.tables.get(kind)
    if table is None:
        raise _other_engine(kind, "compiled")
    plan, written = state.plans[kind], {one.kind: one for one in header.kinds}
    old = written.get(kind)
    if old is None or (old.layout != plan.layout and old.version == plan.version):
        raise _other_layout(plan, plan.version if old is None else old.version)
    table.load(body, read_layout(layout))


def _other_engine(kind: str, was: str) -> FoldMismatch:
    return FoldMismatch(
        f"{kind} was {was} in the snapshot, and is not any more; declare it as it was, or keep the whole log so that "
        "it can be replayed"
    )


def _other_layout(plan: AgentPlan, version: int) -> FoldMismatch:
    return FoldMismatch(
        f"{plan.kind} was version {version} in the snapshot and is version {plan.version} with another layout now; "
        "raise version= and write upcast_state, or keep the whole log so that it can be replayed"
    )


def _carry_over(plan: AgentPlan, old: KindVersion, address: str, body: bytes) -> Any:
    carried = None
    fields = msgspec.msgpack.decode(body)
    if old.version != plan.version:
        try:
            carried = plan.cls.upcast_state(old.version, fields)
        except Exception as error:
            raise FoldMismatch(
                f"{plan.cls.__qualname__}.upcast_state from version {old.version} raises "
                f"{type(error).__name__}: {error}; fix it, or keep the whole log so that it can be replayed"
            ) from error
    if carried is None:
        raise _other_layout(plan, old.version)
    if type(carried) is not plan.cls:
        raise FoldMismatch(f"{plan.cls.__qualname__}.upcast_state returns {carried!r}, not a {plan.cls.__qualname__}")
    carried.id = address.partition("/")[2]
    try:
        carry_filled(carried, fields)
    except ValueError as error:
        raise FoldMismatch(
            f"{plan.cls.__qualname__} from version {old.version}: {error}; or keep the whole log so that it can be "
            "replayed"
        ) from None
    return carried


def _decompress(body: bytes) -> bytes:
    engine = zlib.decompressobj()
    try:
        data = engine.decompress(body, PART_BYTES_MAX)
    except zlib.error as error:
        raise JournalCorrupt(f"a part of a snapshot does not decompress ({error}); an older one is used") from None
    if engine.unconsumed_tail or not engine.eof:
        raise JournalCorrupt("a part of a snapshot is cut or larger than it may be; an older one is used")
    return data


def _digest_part(hasher: Any, body: bytes) -> None:
    hasher.update(len(body).to_bytes(8, "big"))
    hasher.update(body)


# Names of compiled agents in the parts of a snapshot, read without the table that wrote them.
#
# A part with rows begins with TABLE_PART, followed by its kind and the table's own part. Others may read only the parts
# with names; the format of the rows is private to the table.

PART_FORMAT = 1


class SnapshotNames(Struct, array_like=True, frozen=True, tag="names"):
    """The beginning of a part with names; what follows is about enrolments."""

    format: int
    first: int
    count: int
    names: bytes
    """Compressed, each followed by a zero byte."""


class SnapshotRows(Struct, array_like=True, frozen=True, tag="rows"):
    """Any other part."""

    format: int


_outer = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, bytes])
_inner: msgspec.msgpack.Decoder[SnapshotNames | SnapshotRows] = msgspec.msgpack.Decoder(SnapshotNames | SnapshotRows)


def kind_of_part(part: bytes) -> str:
    """The kind of compiled agents of this part of a snapshot; empty if it has none."""
    return _opened(part)[0] if part.startswith(TABLE_PART) else ""


def names_in(part: bytes) -> tuple[str, int, list[str]] | None:
    """The names in a part of a snapshot: kind, number of the first, names. None if there are none in it.

    Raises JournalCorrupt for what does not decode.
    """
    if not part.startswith(TABLE_PART):
        return None
    kind, body = _opened(part)
    try:
        found = _inner.decode(body)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a part of a snapshot does not decode ({error}); an older one is used") from None
    if not isinstance(found, SnapshotNames):
        return None
    if found.format != PART_FORMAT:
        raise JournalCorrupt(f"names of format {found.format} in a snapshot, this version reads {PART_FORMAT}")
    engine = zlib.decompressobj()
    try:
        joined = engine.decompress(found.names, PART_BYTES_MAX).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise JournalCorrupt(f"names in a snapshot do not decompress ({error}); an older one is used") from None
    # None of them is empty: nobody makes room for millions of nothing.
    whole = engine.eof and joined[-1:] in ("", "\0") and not joined.startswith("\0") and "\0\0" not in joined
    if not whole or joined.count("\0") != found.count:
        raise JournalCorrupt("names in a snapshot are not as many as it says; an older one is used")
    return kind, found.first, joined[:-1].split("\0") if joined else []


def _opened(part: bytes) -> tuple[str, bytes]:
    try:
        kind, _, body = _outer.decode(memoryview(part)[len(TABLE_PART) :])
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a part of a snapshot does not decode ({error}); an older one is used") from None
    return kind, body
