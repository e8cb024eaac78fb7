"""What the messages of a ledger on NATS come to: who counts, where, once; what is passed over by everybody alike."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.codec import encode
from stigmergy.base.errors import LedgerCorrupt, LedgerForeign
from stigmergy.claims.port import ENTRIES_COUNT_MAX, ENTRY_BYTES_MAX
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.nats.ledger import records as folding
from stigmergy.nats.ledger.records import (
    FORMAT,
    START,
    Cut,
    Enrol,
    Entries,
    Genesis,
    LedgerBody,
    LedgerChange,
    LedgerRecord,
    LedgerState,
    MessageOutcome,
    Revoke,
    base_of,
    read_base,
    read_record,
    state_of,
    take,
    write_record,
)

NAME = "fold"
INCARNATION = b"i" * 16
verify = Ed25519Verifier().verify


class Hand:
    """A writer, by hand."""

    def __init__(self, name: str, began: int = 0) -> None:
        self.signer = Ed25519Signer(name.encode().ljust(32, b"."))
        self.key = self.signer.public_key
        self.session = name.encode().ljust(8, b".")[:8]
        self.began = began
        self.number = 0

    def write(self, change: LedgerChange, number: int = 0, head: tuple[int, bytes] = (0, START)) -> bytes:
        self.number = number or self.number + 1
        body = LedgerBody(self.session, self.began, self.number, *head, change)
        return write_record(NAME, INCARNATION, self.signer.algorithm, self.key, body, self.signer.sign)

    def entries(self, *bodies: bytes, number: int = 0, part: int = 0, parts: int = 1) -> bytes:
        return self.write(Entries(bodies, part, parts), number)


class Log:
    """Messages as they are stored, and what they have come to."""

    def __init__(self, *writers: Hand) -> None:
        self.state = LedgerState()
        self.bodies: list[bytes] = []
        self.first = writers[0]
        self.put(Hand("genesis").write(Genesis(NAME, INCARNATION, ())) if not writers else self._genesis(writers))

    def _genesis(self, writers: tuple[Hand, ...]) -> bytes:
        return writers[0].write(Genesis(NAME, INCARNATION, tuple(hand.key for hand in writers)))

    def put(self, payload: bytes) -> MessageOutcome:
        taken = take(self.state, self.state.sequence + 1, payload, verify)
        self.state = taken.state
        self.bodies += [entry.body for entry in taken.entries]
        return taken


@pytest.fixture
def one() -> Hand:
    return Hand("one")


@pytest.fixture
def log(one: Hand) -> Log:
    return Log(one)


def test_entries_have_positions_in_the_order_of_their_messages(log: Log, one: Hand) -> None:
    log.put(one.entries(b"a", b"b"))
    log.put(b"")
    taken = log.put(one.entries(b"c"))
    assert [(entry.position, entry.body) for entry in taken.entries] == [(3, b"c")]
    assert (log.state.position, log.state.sequence, log.state.counts.looks) == (3, 4, 1)


def test_what_nobody_may_write_is_passed_over_and_counted(log: Log, one: Hand) -> None:
    stranger = Hand("stranger")
    before = log.state.position
    log.put(stranger.entries(b"x"))
    log.put(b"\xc1 garbage")
    log.put(encode(LedgerRecord(FORMAT + 1, 1, one.key, b"", b"")))
    good = one.entries(b"a")
    log.put(good[:-5] + bytes(5))
    assert log.state.position == before
    counts = log.state.counts
    assert (counts.strangers, counts.malformed, counts.unknown, counts.forged) == (1, 1, 1, 1)
    log.put(good)
    assert log.bodies == [b"a"]


def test_a_record_of_another_ledger_counts_nowhere_else(log: Log, one: Hand) -> None:
    body = LedgerBody(one.session, 0, 5, 0, START, Entries((b"x",)))
    for name, incarnation in (("other", INCARNATION), (NAME, b"j" * 16)):
        log.put(write_record(name, incarnation, one.signer.algorithm, one.key, body, one.signer.sign))
    assert (log.bodies, log.state.counts.forged) == ([], 2)


def test_the_same_message_again_counts_once_however_late(log: Log, one: Hand) -> None:
    first = one.entries(b"a")
    assert log.put(first).counted
    assert not log.put(first).counted
    second = one.entries(b"b")
    log.put(one.entries(b"c"))
    assert not log.put(second).counted, "a later number has counted: it is void"
    assert (log.bodies, log.state.counts.repeated) == ([b"a", b"c"], 2)


def test_writers_enrol_and_revoke_each_other(log: Log, one: Hand) -> None:
    two = Hand("two")
    log.put(two.write(Enrol((two.key,))))
    assert two.key not in log.state.writers
    log.put(one.write(Enrol((two.key,))))
    log.put(two.entries(b"a"))
    log.put(two.write(Revoke((one.key,))))
    log.put(one.entries(b"b"))
    log.put(two.write(Revoke((two.key,))))
    log.put(two.entries(b"c"))
    assert (log.bodies, log.state.writers) == ([b"a", b"c"], (two.key,))


def test_a_full_roster_stays_as_it_is(log: Log, one: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "WRITERS_COUNT_MAX", 2)
    log.put(one.write(Enrol((Hand("two").key, Hand("three").key))))
    assert log.state.writers == (one.key,)


def test_an_append_in_parts_counts_when_it_is_whole(log: Log, one: Hand) -> None:
    two = Hand("two")
    log.put(one.write(Enrol((two.key,))))
    number = one.number + 1
    assert not log.put(one.entries(b"a", b"b", number=number, part=0, parts=3)).counted
    assert not log.put(one.entries(b"x", number=number, part=2, parts=3)).counted, "out of order"
    log.put(two.entries(b"between"))
    log.put(one.entries(b"c", number=number, part=1, parts=3))
    assert not log.put(one.entries(b"c", number=number, part=1, parts=3)).counted, "twice"
    assert log.bodies == [b"between"]
    taken = log.put(one.entries(b"d", number=number, part=2, parts=3))
    assert [(entry.position, entry.body) for entry in taken.entries] == [(2, b"a"), (3, b"b"), (4, b"c"), (5, b"d")]
    assert not log.state.partial


def test_a_part_that_never_comes_keeps_nobody_waiting(log: Log, one: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    log.put(one.entries(b"half", part=0, parts=2))
    log.put(one.entries(b"a"))
    assert (log.bodies, dict(log.state.partial)) == ([b"a"], {})
    two = Hand("two")
    log.put(one.write(Enrol((two.key,))))
    log.put(two.entries(b"half", part=0, parts=2))
    monkeypatch.setattr(folding, "PARTIAL_AGE_MAX", 3)
    for number in range(5):
        log.put(one.entries(b"%d" % number))
    assert not log.state.partial
    assert not log.put(two.entries(b"rest", number=two.number, part=1, parts=2)).counted


def test_partial_appends_are_bounded(log: Log, one: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "PARTIAL_COUNT_MAX", 2)
    hands = [Hand(f"hand-{number}") for number in range(3)]
    log.put(one.write(Enrol(tuple(hand.key for hand in hands))))
    for hand in hands:
        log.put(hand.entries(b"half", part=0, parts=2))
    assert len(log.state.partial) == 2
    assert log.put(hands[2].entries(b"rest", number=1, part=1, parts=2)).counted


def test_a_forgotten_session_does_not_come_back(log: Log, one: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "SESSIONS_COUNT_MAX", 4)
    monkeypatch.setattr(folding, "SESSIONS_KEPT", 3)
    old = one.entries(b"old")
    log.put(old)
    for number in range(8):
        one.session, one.began, one.number = b"session%d" % number, log.state.sequence, 0
        assert log.put(one.entries(b"%d" % number)).counted
    assert len(log.state.sessions) <= 4
    assert not log.put(old).counted
    assert log.bodies.count(b"old") == 1


def test_a_stream_that_does_not_begin_as_a_ledger_is_foreign(one: Hand) -> None:
    for payload in (b"something else", one.entries(b"a")):
        with pytest.raises(LedgerForeign):
            take(LedgerState(), 1, payload, verify)


def test_a_second_beginning_is_none(log: Log, one: Hand) -> None:
    other = Hand("other")
    log.put(one.write(Genesis(NAME, INCARNATION, (other.key,))))
    assert log.state.writers == (one.key,)
    assert log.state.counts.repeated == 1


def test_a_beginning_that_its_writer_has_not_signed_counts_nothing() -> None:
    one, liar = Hand("one"), Hand("liar")
    taken = take(LedgerState(), 1, liar.write(Genesis(NAME, INCARNATION, (one.key,))), verify)
    assert not taken.counted


def test_a_missing_message_is_noticed(log: Log, one: Hand) -> None:
    with pytest.raises(LedgerCorrupt, match="some are missing"):
        take(log.state, log.state.sequence + 2, one.entries(b"a"), verify)


@pytest.mark.parametrize(
    "change",
    [
        Entries(()),
        Entries((b"x",) * (ENTRIES_COUNT_MAX + 1)),
        Entries((bytes(ENTRY_BYTES_MAX + 1),)),
        Entries((b"x",), 1, 1),
        Entries((b"x",), 0, 1_000),
        Enrol(()),
        Enrol((b"",)),
        Revoke((bytes(65),)),
        Cut(0, b""),
        Genesis("", INCARNATION, (b"k",)),
        Genesis(NAME, b"short", (b"k",)),
    ],
)
def test_changes_that_no_writer_of_ours_writes_are_malformed(log: Log, one: Hand, change: LedgerChange) -> None:
    log.put(one.write(change))
    assert log.state.counts.malformed == 1


@pytest.mark.parametrize(
    ("session", "number", "head"),
    [(b"short", 1, START), (b"session.", 0, START), (b"session.", 2**60, START), (b"session.", 1, b"")],
)
def test_bodies_that_no_writer_of_ours_writes_are_malformed(
    log: Log, one: Hand, session: bytes, number: int, head: bytes
) -> None:
    body = LedgerBody(session, 0, number, 0, head, Entries((b"x",)))
    log.put(write_record(NAME, INCARNATION, 1, one.key, body, one.signer.sign))
    assert log.state.counts.malformed == 1


def test_who_begins_at_a_cut_comes_to_the_same_state(log: Log, one: Hand) -> None:
    log.put(one.entries(b"a", b"b"))
    base = log.state
    messages = [one.entries(b"c"), one.write(Cut(2, base_of(base))), one.entries(b"d")]
    for payload in messages:
        log.put(payload)
    read = read_base(base_of(base))
    assert read is not None
    later = state_of(read, 2)
    for payload in messages:
        later = take(later, later.sequence + 1, payload, verify).state
    assert later == log.state
    assert log.state.cut == 2


def test_a_cut_of_what_is_not_there_changes_nothing(log: Log, one: Hand) -> None:
    log.put(one.entries(b"a"))
    log.put(one.write(Cut(5, base_of(log.state))))
    log.put(one.write(Cut(1, b"no base")))
    assert log.state.cut == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert read_record(data) in ("malformed", "unknown") or isinstance(read_record(data), tuple)


@given(st.randoms(use_true_random=False))
def test_whatever_is_repeated_or_reordered_every_entry_counts_once_at_most(draw: random.Random) -> None:
    hands = [Hand("one"), Hand("two")]
    log = Log(*hands)
    sent: list[bytes] = []
    for number in range(12):
        sent.append(draw.choice(hands).entries(b"entry %d" % number))
        for payload in draw.choices(sent, k=draw.randrange(3)):
            log.put(payload)
    assert len(log.bodies) == len(set(log.bodies)) == log.state.position
