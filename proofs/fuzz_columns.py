"""The decoders of compiled agents for the fuzzer: batches stepped into a table, layouts, names, frames of segments."""

from __future__ import annotations

import functools
import zlib

from proofs.column_agents import KIND, Gauge, Gauged, ready_fleet
from stigmergy import Fleet
from stigmergy.agents.codec import encode
from stigmergy.agents.columns import NO_CHECK, read_layout, read_templates, roster_check, write_record
from stigmergy.agents.messages import spec_of
from stigmergy.base.errors import JournalCorrupt, PeerError
from stigmergy.compiled.table import CompiledEngine, engine_of
from stigmergy.journal.segments.frames import (
    SegmentFrameKind,
    decode_group,
    encode_blocks,
    encode_frame,
    encode_group,
    frame_pieces,
    frames_anywhere,
    read_frame,
)
from stigmergy.shard.batches import BATCH_FORMAT, BatchHeader, open_batch, pack_batch
from stigmergy.shard.commit import digest_commit, open_commit
from stigmergy.shard.inputs import ColumnDelivery, EnrollAgents
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import TABLE_PART, digest_of_state, names_in
from stigmergy.shard.state import ShardState
from stigmergy.testing.journal_contract import CommitChain

KEY = bytes(32)
NAMES = ["g-1", "g-2", "g-3"]


@functools.cache
def _engine() -> CompiledEngine:
    return engine_of(Gauge)


@functools.cache
def _fleet() -> Fleet:
    return ready_fleet()


def batches() -> list[bytes]:
    """Good ones, to start from."""
    layout = _engine().layout
    form = [one.tag for one in layout.forms].index(spec_of(Gauged).tag)
    check = roster_check(NO_CHECK, NAMES)
    made: list[bytes] = []
    for count in (1, 3, 70):
        records = b"".join(write_record(layout, form, agent % 3, {"number": 64 * agent}) for agent in range(count))
        header = BatchHeader(BATCH_FORMAT, "radio", 0, 0, 1, 0, 0, KIND, layout.digest(), 1, check, count)
        made.append(pack_batch(header, records))
    return made


def take_batch(data: bytes) -> None:
    """Opens a batch and steps it; whatever is in it, the step goes on, and its commits fold into the same state."""
    header, records = (batch := open_batch(data)).header, batch.records
    lived, again = ShardState(0, _fleet().plans), ShardState(0, _fleet().plans)
    for state in (lived, again):
        state.tables[KIND].batch(("Act@1", "Warn@1"))
    shard = Shard(lived)
    delivery = ColumnDelivery(
        source=header.source,
        kind=header.kind,
        layout=header.layout,
        generation=header.generation,
        check=header.check,
        records=records,
        count=header.count,
        sequence=1,
    )
    left = shard.step([EnrollAgents(KIND, NAMES), delivery], 1_000).left
    while (ready := shard.seal()) is not None:
        apply(again, open_commit(ready.sealed.body), digest_commit(ready.sealed.body))
        left = shard.step(left, 1_000).left
    if digest_of_state(lived) != digest_of_state(again):
        raise AssertionError("lived and replayed tables differ")


def warm_up() -> None:
    """Compiles, or loads what was compiled: that is no cost of a batch."""
    take_batch(batches()[0])


def declarations() -> list[bytes]:
    """A layout, and templates."""
    return [encode(_engine().layout), encode(_engine().program.templates)]


def read_declaration(data: bytes) -> None:
    """As a layout, and as templates."""
    refused = 0
    for read in (read_layout, read_templates):
        try:
            read(data)
        except JournalCorrupt:
            refused += 1
    if refused == 2:
        raise JournalCorrupt("neither")


def names() -> list[bytes]:
    """A part of a snapshot with names in it."""
    inner = encode(("names", 1, 0, 3, zlib.compress(b"".join(name.encode() + b"\0" for name in NAMES))))
    return [TABLE_PART + encode((KIND, encode(_engine().layout), inner))]


def read_names(data: bytes) -> None:
    """As recovery without classes does."""
    names_in(data)


def frames() -> list[bytes]:
    """A small and a large group."""
    group = CommitChain().group([0, 1], bytes(500))
    large = b"".join(frame_pieces(KEY, SegmentFrameKind.BLOCKS, 2, encode_blocks(group), 4096))
    return [encode_frame(KEY, SegmentFrameKind.GROUP, 1, encode_group(group)) + large]


def read_frames(data: bytes) -> None:
    """Whatever is there; and as the index of a large group that is keyed as it should be."""
    for frame in frames_anywhere(KEY, data):
        if frame.kind in (SegmentFrameKind.GROUP, SegmentFrameKind.BLOCKS):
            decode_group(frame, "fuzzed")
    index = len(data).to_bytes(4, "little") + data
    keyed = read_frame(KEY, b"".join(frame_pieces(KEY, SegmentFrameKind.BLOCKS, 1, [index])))
    if keyed is not None:
        decode_group(keyed, "fuzzed")


PEER = (PeerError,)
CORRUPT = (JournalCorrupt,)
