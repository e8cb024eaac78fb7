"""Row 17: every decoder of the core, fed with noise and with damaged bytes, raises what it says and nothing else.

Time and memory are bounded: what is declared to be huge is not believed, what is nested without end is refused.
"""

from __future__ import annotations

import contextlib
import resource
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proofs.menagerie import MENAGERIE, Counted, Do, Sampled, SampledV1
from stigmergy.agents.codec import UNDECODABLE, Envelope, encode, is_sound, open_envelope, tag_of
from stigmergy.agents.plans import plan_agent
from stigmergy.base.errors import FoldMismatch, JournalCorrupt, JournalForeign, Malformed, TooLarge
from stigmergy.shard.commit import digest_commit, open_commit
from stigmergy.shard.inputs import Ask, Delivery, EffectSettled
from stigmergy.shard.replay import apply
from stigmergy.shard.snapshot import SnapshotWriter, load_agents, read_header
from stigmergy.shard.state import ShardState, plan_agents
from stigmergy.shard.timers import TimerSet, read_timer
from tests.shard.shards import Probe, observed

PLANS = plan_agents(MENAGERIE)
WORKER = plan_agent(MENAGERIE[0])


def lived() -> Probe:
    probe = Probe(*MENAGERIE)
    probe.observe("Worker/a", Counted(n=1), Sampled(metres=1.0, at_s=100.0), SampledV1(value=3), Do(n=7))
    probe.observe("Simple/a", Counted(n=17), Counted(n=5))
    probe.take(Ask("Worker/a", "c1", encode(Do(n=0))), Ask("Worker/a", "c2", encode(Do(n=8))))
    return probe


LIVED = lived()
COMMITS = LIVED.log
TAKING = SnapshotWriter(LIVED.state)
HEADER = TAKING.next_part({}) or b""
PART = TAKING.next_part({}) or b""
BODIES = [encode(message) for message in (Counted(n=1), Do(n=3), Sampled(metres=1.0), SampledV1(value=3))]
ENVELOPE = encode(Envelope(1, "s", 0, 0, 1, [("Worker/a", BODIES[0]), ("Worker/a", BODIES[1])]))
HUGE = [
    b"\xdd\xff\xff\xff\xff",  # an array, a map, bytes and a text of four thousand million
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\x91" * 100_000,
    b"\x81\xa1a" * 50_000,
    b"\x96\x01\xdd\x7f\xff\xff\xff" + b"\x92\xa1a\xc4\x00" * 1000,
]


@st.composite
def damaged(draw: st.DrawFn, valid: list[bytes]) -> bytes:
    """Valid bytes with some of them changed, cut out, doubled or put in; or noise."""
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 5)):
            case 0 if data:
                data[at % len(data)] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[at : at + draw(st.integers(1, 20))]
            case 2:
                data[at:at] = draw(st.binary(max_size=12))
            case 3:
                data[at:at] = data[at : at + 30]
            case 4:
                data[at : at + 5] = draw(st.sampled_from(HUGE[:4]))
            case _:
                data = bytearray(draw(st.binary(max_size=60)))
    return bytes(data)


def only(call: Callable[[bytes], Any], data: bytes, *allowed: type[Exception]) -> None:
    """Calls with these bytes; any other exception fails the test by itself."""
    with contextlib.suppress(*allowed):
        call(data)


FUZZ = settings(deadline=20_000)


@FUZZ
@given(damaged([ENVELOPE]))
def test_envelopes(data: bytes) -> None:
    only(open_envelope, data, Malformed, TooLarge)


@FUZZ
@given(damaged(COMMITS))
def test_commits(data: bytes) -> None:
    only(open_commit, data, JournalCorrupt, JournalForeign)


@FUZZ
@given(damaged(COMMITS[:1]))
def test_commits_that_decode_are_applied_or_refused(data: bytes) -> None:
    """Recovery checks the digest first; whoever does not still gets no other errors than these."""

    def open_and_apply(body: bytes) -> None:
        apply(ShardState(0, PLANS), open_commit(body), digest_commit(body))

    only(open_and_apply, data, JournalCorrupt, JournalForeign, FoldMismatch)


@FUZZ
@given(damaged([zlib.decompress(HEADER)]), st.booleans())
def test_headers_of_snapshots(data: bytes, packed: bool) -> None:
    only(read_header, zlib.compress(data) if packed else data, JournalCorrupt, JournalForeign)


@FUZZ
@given(damaged([zlib.decompress(PART)]), st.booleans())
def test_parts_of_snapshots(data: bytes, packed: bool) -> None:
    header = read_header(HEADER)

    def load(body: bytes) -> None:
        load_agents(ShardState(0, PLANS), header, body)

    only(load, zlib.compress(data) if packed else data, JournalCorrupt, FoldMismatch)


@FUZZ
@given(damaged(BODIES))
@example(b"\x83\xa4type\xa9\xc3ounted@1\xa1n\x01\xa3pad\xa0")
def test_messages(data: bytes) -> None:
    only(WORKER.decode, data, *UNDECODABLE)
    tag_of(data)
    is_sound(data)


@FUZZ
@given(damaged([encode(TimerSet("a", 5)), encode(TimerSet("a", None, follows_wall=True))]))
def test_timers(data: bytes) -> None:
    only(read_timer, data, JournalCorrupt)


@pytest.mark.parametrize("data", HUGE, ids=range(len(HUGE)))
def test_what_claims_to_be_huge_costs_little(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    only(open_envelope, data, Malformed)
    only(open_commit, data, JournalCorrupt)
    only(read_timer, data, JournalCorrupt)
    only(WORKER.decode, data, *UNDECODABLE)
    only(read_header, zlib.compress(data), JournalCorrupt)
    tag_of(data)
    is_sound(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024, "kilobytes"


def test_a_small_part_that_unpacks_without_end_is_cut_off() -> None:
    bomb = zlib.compress(bytes(200 * 1024 * 1024), 9)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    only(read_header, bomb, JournalCorrupt)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 * 1024, "kilobytes"


ADDRESSES = st.sampled_from(["Worker/a", "Simple/a", "Quiet/new", ""]) | st.text(max_size=20)
ITEMS = st.lists(st.tuples(ADDRESSES, damaged(BODIES)), min_size=1, max_size=12)


@FUZZ
@given(ITEMS, st.booleans())
@example([("Worker/a", b"\xc1"), ("\ud800", b""), ("Worker/\ud800", BODIES[0])], True)
def test_a_step_takes_any_noise_and_counts_it(items: list[tuple[str, bytes]], sequenced: bool) -> None:
    check_step_takes(items, sequenced)


def test_a_step_takes_what_claims_to_be_huge() -> None:
    check_step_takes([("Worker/a", body) for body in HUGE], True)


def check_step_takes(items: list[tuple[str, bytes]], sequenced: bool) -> None:
    """Steps these items in every way there is: none raises, all are counted, the mark moves past them."""
    probe = Probe(*MENAGERIE)
    probe.step(observed("Worker/a", Counted(n=1)), observed("Simple/a", Counted(n=5)))
    probe.seal()
    before = probe.shard.counters.inputs
    left: list[Any] = [Delivery("noise", items, sequence=1 if sequenced else 0)]
    left += [Ask(address, f"c{number}", body) for number, (address, body) in enumerate(items)]
    left += [EffectSettled("actuators", 1, items[0][1])]
    while left:
        left = list(probe.step(*left).left)
        probe.seal()
    counters = probe.shard.counters
    assert counters.inputs - before == len(items)
    assert probe.state.marks.consumed("noise", 0) == (len(items) if sequenced else 0)
    commits = [open_commit(body) for body in probe.log]
    kept = sum(len(commit.events) for commit in commits)
    assert kept >= counters.failed
    assert sum(len(commit.answers) for commit in commits) >= len(items), "every command is answered"
