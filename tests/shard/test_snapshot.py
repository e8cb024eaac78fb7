"""Snapshots: full and incremental, taken while agents go on, and what is said of those that cannot be used."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from blake3 import blake3
from msgspec import field, msgpack
from msgspec.structs import replace

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Event
from stigmergy.base.errors import DefinitionError, FoldMismatch, JournalCorrupt, JournalForeign, StaleEpoch
from stigmergy.shard.commit import digest_commit, open_commit
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import (
    AGENTS_PER_PART,
    SnapshotHeader,
    SnapshotWriter,
    digest_of_parts,
    digest_of_state,
    fold_digest,
    load_agents,
    load_tables,
    read_header,
)
from stigmergy.shard.state import ShardState, plan_agents
from tests.shard.shards import Probe, observed


class Went(Event):
    n: int = 0


class Rover(Agent):
    n: int = 0
    level: float = 0.0
    trail: tuple[float, ...] = ()

    @evolve
    def went(self, event: Went) -> None:
        self.n = event.n
        self.trail = (*self.trail[-3:], 0)


def parts_of(probe: Probe, **options: Any) -> list[bytes]:
    taking = SnapshotWriter(probe.state, **options)
    return list(iter(lambda: taking.next_part({}), None))


def loaded(probe: Probe, *snapshots: list[bytes]) -> ShardState:
    state = ShardState(0, probe.plans)
    for parts in snapshots:
        header = read_header(parts[0])
        for part in parts[1:]:
            load_agents(state, header, part)
    load_tables(state, read_header(snapshots[-1][0]).tables)
    return state


def many(count: int = 2_500) -> Probe:
    probe = Probe(Rover)
    for start in range(0, count, 500):
        probe.take(*(observed(f"Rover/{number}", Went(n=number)) for number in range(start, min(start + 500, count))))
    return probe


def test_agents_come_in_portions() -> None:
    probe = many()
    parts = parts_of(probe)
    assert len(parts) == 1 + math.ceil(2_500 / AGENTS_PER_PART)
    assert read_header(parts[0]).agents_count == 2_500
    assert digest_of_state(loaded(probe, parts)) == digest_of_state(probe.state)


def test_large_agents_make_smaller_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.shard.snapshot.PART_BYTES", 2_000)
    probe = many(100)
    parts = parts_of(probe)
    assert len(parts) > 3
    assert digest_of_state(loaded(probe, parts)) == digest_of_state(probe.state)


def test_a_part_ends_with_the_agent_that_makes_it_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = many(6)
    header, whole = parts_of(probe)
    (each_bytes,) = {len(body) for _, body in _agents_of(whole)}
    for limit, sizes in ((each_bytes - 1, [1] * 6), (each_bytes, [2] * 3), (3 * each_bytes - 1, [3] * 2)):
        monkeypatch.setattr("stigmergy.shard.snapshot.PART_BYTES", limit)
        assert [len(_agents_of(part)) for part in parts_of(probe)[1:]] == sizes
    assert read_header(header).agents_count == 6


@pytest.mark.parametrize(
    ("agents", "sizes"),
    [(AGENTS_PER_PART - 1, [199]), (AGENTS_PER_PART, [200]), (AGENTS_PER_PART + 1, [200, 1]), (400, [200, 200])],
)
def test_a_part_has_so_many_agents(agents: int, sizes: list[int]) -> None:
    assert [len(_agents_of(part)) for part in parts_of(many(agents))[1:]] == sizes


def test_another_state_has_another_digest() -> None:
    states = []
    for events, source in (((1, 2), "s"), ((1, 3), "s"), ((2, 2), "s"), ((1, 2), "t")):
        probe = Probe(Rover)
        for number, n in enumerate(events):
            probe.take(observed(f"Rover/{number}", Went(n=n), source=source, sequence=number + 1))
        states.append(probe.state)
    for state in states:
        state.digest = b""  # that of the log; here it is what the state itself adds
    assert len({digest_of_state(state) for state in states}) == 4
    one, other = states[0], states[1]
    one.marks, one.agents["Rover/1"].n = other.marks, other.agents["Rover/1"].n
    assert digest_of_state(one) == digest_of_state(other)
    one.agents["Rover/0"].n = 9
    assert digest_of_state(one) != digest_of_state(other)


def test_parts_are_packed() -> None:
    probe = many(300)
    probe.take(*(observed("Rover/0", Went(), source=f"source/{number}", sequence=1) for number in range(100)))
    for part in parts_of(probe):
        assert len(part) < len(zlib.decompress(part)) // 2


def _agents_of(part: bytes) -> list[Any]:
    return list(msgpack.decode(zlib.decompress(part)))


def test_the_digest_is_over_the_length_and_the_bytes_of_each_part() -> None:
    hasher = blake3(derive_key_context="stigmergy 2026 snapshot parts")
    for part in (b"a", b"bc" * 300):
        hasher.update(len(part).to_bytes(8, "big") + part)
    assert digest_of_parts([b"a", b"bc" * 300]) == hasher.digest()
    assert len(fold_digest(many(1).plans)) == 16


def test_a_full_snapshot_says_so_and_where_it_stands() -> None:
    probe = many(1)
    header = read_header(parts_of(probe)[0])
    assert (header.format, header.hash_algorithm, header.base, header.base_digest) == (1, 1, 0, b"")
    assert (header.tables.position, header.tables.events_count) == (1, 1)
    assert SnapshotWriter(probe.state).base == 0


def test_a_part_may_unpack_to_its_limit_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = many(1)
    good = parts_of(probe)[0]
    size = len(zlib.decompress(good))
    monkeypatch.setattr("stigmergy.shard.snapshot.PART_BYTES_MAX", size)
    assert read_header(good).agents_count == 1
    monkeypatch.setattr("stigmergy.shard.snapshot.PART_BYTES_MAX", size - 1)
    with pytest.raises(JournalCorrupt, match="larger than it may be"):
        read_header(good)


def test_agents_that_go_on_are_taken_as_they_were() -> None:
    probe = many()
    lived = digest_of_state(probe.state)
    taking = SnapshotWriter(probe.state)
    parts = [taking.next_part({}), taking.next_part({})]
    probe.step(observed("Rover/1", Went(n=-1)), observed("Rover/2400", Went(n=-1)), observed("Rover/new", Went(n=1)))
    taking.keep_images(probe.seal().touched)
    probe.step(observed("Rover/2400", Went(n=-2)))
    taking.keep_images(probe.seal().touched)
    probe.step(observed("Rover/2400", Went(n=-3)), observed("Rover/1500", Went(n=-3)))
    while parts[-1] is not None:
        parts.append(taking.next_part(probe.shard.open_images))
    stored = [part for part in parts if part is not None]
    state = loaded(probe, stored)
    assert digest_of_state(state) == lived
    note = taking.note()
    assert note.digest == digest_of_parts(stored)
    assert (note.position, note.chain) == (taking.position, digest_commit(probe.log[taking.position - 1]))
    assert note.fold == fold_digest(probe.plans)
    assert (taking.parts_count, taking.size_bytes) == (len(stored), sum(map(len, stored)))
    probe.seal()
    for body in probe.log[taking.position :]:
        apply(state, open_commit(body), digest_commit(body))
    assert digest_of_state(state) == digest_of_state(probe.state)


def test_an_incremental_snapshot_adds_to_its_base() -> None:
    probe = many(50)
    base = parts_of(probe)
    position = probe.state.position
    probe.step(observed("Rover/7", Went(n=-7)), observed("Rover/new", Went(n=1)))
    ready = probe.seal()
    added = parts_of(probe, base=position, changed=ready.touched)
    header = read_header(added[0])
    assert (header.base, header.agents_count) == (position, 2)
    assert digest_of_state(loaded(probe, base, added)) == digest_of_state(probe.state)


def test_a_snapshot_holds_all_marks() -> None:
    """Whoever repeats what came before the snapshot is passed over after it; an owner that was replaced stays so."""
    probe = Probe(Rover)
    probe.take(observed("Rover/a", Went(n=1), Went(n=2), source="s", sequence=1, epoch=3))
    probe.take(observed("Rover/a", Went(n=3), source="t", sequence=1))
    state = loaded(probe, parts_of(probe))
    assert state.marks.all() == probe.state.marks.all()
    shard = Shard(state)
    again = shard.step([observed("Rover/a", Went(n=2), source="s", sequence=2, epoch=3)], 0)
    stale = shard.step([observed("Rover/a", Went(n=9), source="s", sequence=3, epoch=2)], 0)
    assert (again.wait_ns, again.untaken) == (None, [])
    assert [type(error) for _, error in stale.untaken] == [StaleEpoch]
    assert state.agents["Rover/a"].n == 3


def test_a_state_that_cannot_be_written_is_named() -> None:
    for wrong in (2**70, "text"):
        probe = Probe(Rover)
        probe.step(observed("Rover/r", Went(n=1)))
        probe.seal()
        probe.agent("Rover/r").n = wrong
        taking = SnapshotWriter(probe.state)
        taking.next_part({})
        said = (
            rf"Rover/r: its state .* because its field n holds .* a {type(wrong).__name__} .*@evolve handler of Rover"
        )
        with pytest.raises(DefinitionError, match=said):
            taking.next_part({})


def test_a_state_that_cannot_be_read_back_for_no_field_alone_is_named_all_the_same() -> None:
    class Pair(Agent):
        low: int = 0
        high: int = 0

        def __post_init__(self) -> None:
            if self.low > self.high >= 1:
                raise ValueError("low is above high")

        @evolve
        def went(self, event: Went) -> None:
            self.low, self.high = 2, 1

    probe = Probe(Pair)
    probe.step(observed("Pair/p", Went(n=1)))
    probe.shard.seal()
    taking = SnapshotWriter(probe.state)
    taking.next_part({})
    with pytest.raises(DefinitionError, match=r"Pair/p: its state cannot be written and read back \(.*low is above"):
        taking.next_part({})


def test_numbers_inside_containers_have_one_form_too() -> None:
    probe = Probe(Rover)
    probe.observe("Rover/r", Went(n=1))
    assert probe.agent("Rover/r").trail == (0,)
    state = loaded(probe, parts_of(probe))
    assert type(state.agents["Rover/r"].trail[0]) is float
    assert digest_of_state(state) == digest_of_state(probe.state)


def header_of(probe: Probe, **changed: Any) -> bytes:
    header = read_header(parts_of(probe)[0])
    return zlib.compress(encode(replace(header, **changed)))


def test_headers_that_are_none() -> None:
    probe = many(1)
    good = parts_of(probe)[0]
    cases: list[tuple[bytes, type[Exception], str]] = [
        (b"", JournalCorrupt, "is cut or larger than it may be; an older one is used"),
        (b"x" * 50, JournalCorrupt, "does not decompress"),
        (good[:-3], JournalCorrupt, "is cut or larger"),
        (zlib.compress(b"\xc1"), JournalCorrupt, "the header of a snapshot does not decode"),
        (zlib.compress(b"\x91" * 5_000), JournalCorrupt, "the header of a snapshot does not decode"),
        (zlib.compress(bytes(65 * 1024 * 1024), 1), JournalCorrupt, "larger than it may be"),
        (header_of(probe, format=2), JournalForeign, "snapshot format 2 with hash algorithm 1, this version reads"),
        (header_of(probe, format=0), JournalForeign, "snapshot format 0"),
        (header_of(probe, hash_algorithm=0), JournalForeign, "with hash algorithm 0"),
        (header_of(probe, hash_algorithm=2), JournalForeign, "use the version that wrote it"),
    ]
    for body, error, text in cases:
        with pytest.raises(error, match=re.escape(text)):
            read_header(body)


def test_parts_that_are_none() -> None:
    probe = many(1)
    header = read_header(parts_of(probe)[0])
    for body in (zlib.compress(b"\xc1"), zlib.compress(b"\x91" * 5_000)):
        with pytest.raises(JournalCorrupt, match="a part of a snapshot does not decode"):
            load_agents(ShardState(0, probe.plans), header, body)


def test_a_kind_that_is_gone() -> None:
    probe = many(1)
    header, part = parts_of(probe)
    with pytest.raises(FoldMismatch, match="agents of kind 'Rover', which this fleet does not; add the class"):
        load_agents(ShardState(0, {}), read_header(header), part)
    without: SnapshotHeader = replace(read_header(header), kinds=[])
    with pytest.raises(FoldMismatch, match="add the class"):
        load_agents(ShardState(0, probe.plans), without, part)


def test_a_state_that_is_none_of_this_class() -> None:
    probe = many(1)
    header, _ = parts_of(probe)
    for body in (encode({"id": "0", "n": "x"}), b"\xc1", b"\x81" * 5_000):
        part = zlib.compress(encode([("Rover/0", body)]))
        with pytest.raises(FoldMismatch, match=r"Rover/0: its state in the snapshot is not one of today's Rover"):
            load_agents(ShardState(0, probe.plans), read_header(header), part)


def test_another_layout_needs_another_version() -> None:
    class Changed(Agent, kind="Rover"):
        n: int = 0

    with pytest.raises(FoldMismatch, match="was version 1 in the snapshot and is version 1 with another layout"):
        carry(Changed)


def test_a_state_is_carried_over_by_its_class() -> None:
    class Newer(Agent, kind="Rover", version=2):
        metres: float = 0.0
        seen: list[int] = field(default_factory=list)

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            assert version == 1
            return cls(metres=fields["n"] / 1000)

    agent = carry(Newer)
    assert (agent.id, agent.metres, agent.seen) == ("r", 1.5, [])


def test_an_upcaster_of_states_that_goes_wrong() -> None:
    class Silent(Agent, kind="Rover", version=2):
        pass

    class Raises(Agent, kind="Rover", version=2):
        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            raise KeyError("metres")

    class Returns(Agent, kind="Rover", version=2):
        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return {"metres": 1}

    for cls, text in (
        (Silent, "Rover was version 1 in the snapshot and is version 2 with another layout now; raise version="),
        (Raises, "upcast_state from version 1 raises KeyError: 'metres'; fix it, or keep the whole log"),
        (Returns, "upcast_state returns {'metres': 1}, not a"),
    ):
        with pytest.raises(FoldMismatch, match=re.escape(text)):
            carry(cls)


def carry(cls: type[Agent]) -> Any:
    """A rover of today's snapshot in tomorrow's class."""
    probe = Probe(Rover)
    probe.observe("Rover/r", Went(n=1500))
    header, part = parts_of(probe)
    state = ShardState(0, plan_agents([cls]))
    load_agents(state, read_header(header), part)
    return state.agents["Rover/r"]
