"""The mailbox under load: every policy, what is counted, what bounds it, and that no mark is left behind."""

import random

import pytest

from stigmergy.base.errors import Overloaded
from stigmergy.node.mailbox import (
    BLOCK,
    BLOCKED_COUNT_MAX,
    DROP_OLDEST,
    NOTE_TICKETS_MAX,
    STEP_NS,
    STEPPED_ITEMS_MIN,
    Mailbox,
    Queued,
    StreamPolicy,
    sample,
)
from stigmergy.shard.inputs import Ask, ColumnDelivery, Delivery, SequencesSkipped, TimerDue

ITEM = ("Drone/a", b"x")


class Recorder:
    """A ticket that remembers what became of it."""

    def __init__(self) -> None:
        self.resolved = 0
        self.failed = 0

    def resolve(self) -> None:
        self.resolved += 1

    def fail(self, error: Exception) -> None:
        self.failed += 1


def delivery(
    sequence: int,
    items: int = 1,
    source: str = "s",
    shard: int = 0,
    incarnation: int = 0,
    ticket: Recorder | None = None,
) -> Queued:
    one = Delivery(source, [ITEM] * items, sequence=sequence, incarnation=incarnation)
    return Queued(shard, one, (ticket,) if ticket else (), items, 10 * items)


def make(items_max: int = 10, commands_max: int = 3, bytes_max: int = 10_000) -> Mailbox:
    return Mailbox(commands_max, items_max, bytes_max)


def drain(mailbox: Mailbox, items_max: int = 1_000_000) -> list[Queued]:
    return list(mailbox.take(items_max, telemetry=True))


def sequences(letters: list[Queued]) -> list[tuple[str, int]]:
    told: list[tuple[str, int]] = []
    for letter in letters:
        match letter.input:
            case Delivery(sequence=sequence):
                told.append(("take", sequence))
            case SequencesSkipped(last=last):
                told.append(("skip", last))
            case _:
                told.append(("other", 0))
    return told


def consume(letters: list[Queued]) -> dict[tuple[int, str, int], int]:
    """What the marks would be; fails on a gap, as the marks would."""
    marks: dict[tuple[int, str, int], int] = {}
    for letter in letters:
        match letter.input:
            case Delivery() as one:
                key = (letter.shard, one.source, one.incarnation)
                assert one.sequence <= marks.get(key, 0) + 1, f"gap before {one.sequence} of {key}"
                marks[key] = max(marks.get(key, 0), one.sequence + len(one.items) - 1)
            case SequencesSkipped() as one:
                key = (letter.shard, one.source, one.incarnation)
                marks[key] = max(marks.get(key, 0), one.last)
            case _:
                continue
    return marks


def test_lanes_are_served_inside_first_then_commands_then_telemetry() -> None:
    mailbox = make()
    mailbox.put_telemetry(delivery(1), BLOCK)
    mailbox.put_command(Queued(0, Ask("Drone/a", "c", b"")))
    mailbox.put_inside(Queued(0, TimerDue("Drone/a", "t", 1)))
    assert [type(letter.input) for letter in drain(mailbox)] == [TimerDue, Ask, Delivery]
    assert not mailbox.waiting


def test_take_stops_at_its_limit_and_can_leave_telemetry_alone() -> None:
    mailbox = make()
    for number in range(1, 6):
        mailbox.put_telemetry(delivery(number), BLOCK)
    assert not list(mailbox.take(10, telemetry=False))
    assert sequences(list(mailbox.take(2, telemetry=True))) == [("take", 1), ("take", 2)]
    assert mailbox.items == 3
    assert not mailbox.pressing
    assert mailbox.waiting


def test_what_is_put_back_comes_first_and_in_order() -> None:
    mailbox = make()
    mailbox.put_inside(Queued(0, TimerDue("Drone/a", "t", 1)))
    mailbox.put_back([delivery(1), delivery(2)])
    assert [type(letter.input) for letter in drain(mailbox)] == [Delivery, Delivery, TimerDue]


def test_commands_are_told_when_there_are_too_many_and_are_never_shed_for_telemetry() -> None:
    mailbox = make(items_max=2, commands_max=3)
    for number in range(3):
        mailbox.put_command(Queued(0, Ask("Drone/a", str(number), b"")))
    for number in range(1, 100):
        mailbox.put_telemetry(delivery(number), DROP_OLDEST)
    with pytest.raises(Overloaded, match="3 commands are waiting"):
        mailbox.put_command(Queued(0, Ask("Drone/a", "one too many", b"")))
    assert sum(isinstance(letter.input, Ask) for letter in drain(mailbox)) == 3
    assert mailbox.counters.overloads == 1
    assert mailbox.counters.shed_items == 97


def test_a_full_command_lane_does_not_shut_telemetry_out() -> None:
    mailbox = make(commands_max=1)
    mailbox.put_command(Queued(0, Ask("Drone/a", "1", b"")))
    mailbox.put_telemetry(delivery(1), BLOCK)
    assert len(drain(mailbox)) == 2


class TestBlock:
    def test_what_finds_no_room_waits_in_line_and_nothing_is_lost(self) -> None:
        mailbox = make(items_max=2)
        for number in range(1, 8):
            mailbox.put_telemetry(delivery(number), BLOCK)
        assert mailbox.counters.blocked == 5
        taken: list[Queued] = []
        while mailbox.waiting:
            taken += mailbox.take(1, telemetry=True)
        assert sequences(taken) == [("take", number) for number in range(1, 8)]

    def test_one_that_would_fit_waits_behind_one_that_does_not(self) -> None:
        mailbox = make(items_max=5)
        mailbox.put_telemetry(delivery(1, items=4), BLOCK)
        mailbox.put_telemetry(delivery(5, items=4), BLOCK)
        mailbox.put_telemetry(delivery(9, items=1), BLOCK)
        assert sequences(drain(mailbox)) == [("take", 1)]
        assert sequences(drain(mailbox)) == [("take", 5), ("take", 9)]

    def test_an_envelope_larger_than_the_lane_is_taken_alone(self) -> None:
        mailbox = make(items_max=2)
        mailbox.put_telemetry(delivery(1, items=50), BLOCK)
        mailbox.put_telemetry(delivery(51), BLOCK)
        assert sequences(drain(mailbox)) == [("take", 1)]
        assert sequences(drain(mailbox)) == [("take", 51)]

    def test_so_many_senders_may_wait_and_no_more(self) -> None:
        mailbox = make(items_max=1)
        for number in range(1, BLOCKED_COUNT_MAX + 2):
            mailbox.put_telemetry(delivery(number), BLOCK)
        with pytest.raises(Overloaded, match="nothing was taken"):
            mailbox.put_telemetry(delivery(BLOCKED_COUNT_MAX + 2), BLOCK)

    def test_so_many_bytes_may_wait_and_no_more(self) -> None:
        mailbox = make(items_max=1, bytes_max=100)
        mailbox.put_telemetry(delivery(1), BLOCK)
        mailbox.put_telemetry(delivery(2, items=8), BLOCK)
        with pytest.raises(Overloaded):
            mailbox.put_telemetry(delivery(10, items=8), BLOCK)
        assert sequences(drain(mailbox)) == [("take", 1)]
        assert sequences(drain(mailbox)) == [("take", 2)]
        mailbox.put_telemetry(delivery(10, items=8), BLOCK)
        assert sequences(drain(mailbox)) == [("take", 10)]


class TestDropOldest:
    def test_the_oldest_of_the_same_stream_goes_and_leaves_one_note(self) -> None:
        mailbox = make(items_max=3)
        for number in range(1, 11):
            mailbox.put_telemetry(delivery(number), DROP_OLDEST)
        assert sequences(drain(mailbox)) == [("skip", 7), ("take", 8), ("take", 9), ("take", 10)]
        assert mailbox.counters.shed_items == 7

    def test_other_streams_keep_their_letters(self) -> None:
        mailbox = make(items_max=4)
        mailbox.put_telemetry(delivery(1, source="other"), BLOCK)
        mailbox.put_telemetry(delivery(1), DROP_OLDEST)
        mailbox.put_telemetry(delivery(2, source="other"), BLOCK)
        mailbox.put_telemetry(delivery(2), DROP_OLDEST)
        mailbox.put_telemetry(delivery(3), DROP_OLDEST)
        # Each source has its own order; between them they take turns.
        assert sequences(drain(mailbox)) == [("take", 1), ("take", 2), ("skip", 1), ("take", 2), ("take", 3)]

    def test_without_one_of_its_own_the_newcomer_goes(self) -> None:
        mailbox = make(items_max=1)
        mailbox.put_telemetry(delivery(1, source="other"), BLOCK)
        for number in range(1, 50):
            mailbox.put_telemetry(delivery(number), DROP_OLDEST)
        letters = drain(mailbox)
        assert consume(letters) == {(0, "other", 0): 1, (0, "s", 0): 49}
        assert len(letters) == 2

    def test_a_repetition_among_what_is_shed_does_not_turn_the_mark_back(self) -> None:
        mailbox = make(items_max=3)
        for number in (1, 2, 3, 1, 4, 2, 5, 6, 7, 8):
            mailbox.put_telemetry(delivery(number), DROP_OLDEST)
        assert consume(drain(mailbox))[0, "s", 0] == 8

    def test_shards_and_incarnations_have_marks_of_their_own(self) -> None:
        mailbox = make(items_max=4)
        for number in range(1, 20):
            for shard in range(4):
                mailbox.put_telemetry(delivery(number, shard=shard), DROP_OLDEST)
            mailbox.put_telemetry(delivery(number, incarnation=1), DROP_OLDEST)
        marks = consume(drain(mailbox))
        assert marks == {(shard, "s", 0): 19 for shard in range(4)} | {(0, "s", 1): 19}


class TestSample:
    def test_of_so_many_one_stays_once_the_lane_is_half_full(self) -> None:
        mailbox = make(items_max=100)
        for number in range(1, 151):
            mailbox.put_telemetry(delivery(number), sample(10))
        letters = drain(mailbox)
        taken = [one for what, one in sequences(letters) if what == "take"]
        assert taken == [*range(1, 53), *range(62, 151, 10)]
        assert mailbox.counters.sampled_items == mailbox.counters.shed_items == 150 - len(taken)
        assert consume(letters)[0, "s", 0] == 150

    def test_every_shard_gets_its_share(self) -> None:
        mailbox = make(items_max=1_000, bytes_max=100_000)
        mailbox.put_telemetry(delivery(1, items=600, source="load"), BLOCK)
        for number in range(1, 101):
            for shard in range(4):
                mailbox.put_telemetry(delivery(number, shard=shard), sample(10))
        letters = drain(mailbox)
        for shard in range(4):
            assert sum(isinstance(one.input, Delivery) and one.shard == shard for one in letters[1:]) == 10
        assert all(mark == 100 for key, mark in consume(letters).items() if key[1] == "s")

    def test_sampling_needs_at_least_two(self) -> None:
        with pytest.raises(ValueError, match="at least 2"):
            sample(1)


@pytest.mark.parametrize("policy", [DROP_OLDEST, sample(3)])
def test_memory_is_bounded_however_much_comes(policy: StreamPolicy) -> None:
    mailbox = make(items_max=10)
    for number in range(1, 5_001):
        for source in ("a", "b", "c"):
            mailbox.put_telemetry(delivery(number, source=source), policy)
    letters = drain(mailbox)
    assert len(letters) <= 2 * 10 + 2 * 3
    assert set(consume(letters).values()) == {5_000}


@pytest.mark.parametrize("policy", [DROP_OLDEST, sample(3)])
def test_senders_who_never_wait_are_told_in_the_end(policy: StreamPolicy) -> None:
    mailbox = make(items_max=2)
    tickets = [Recorder() for _ in range(3 * NOTE_TICKETS_MAX)]
    refused = 0
    for number, ticket in enumerate(tickets, start=1):
        try:
            mailbox.put_telemetry(delivery(number, ticket=ticket), policy)
        except Overloaded:
            refused += 1
    held = sum(len(letter.tickets) for letter in drain(mailbox))
    assert held + refused == len(tickets)
    assert held <= NOTE_TICKETS_MAX + 10


def records(sequence: int, items: int = 80) -> Queued:
    one = ColumnDelivery("radio", "Meter", b"", 1, b"", b"", items, sequence)
    return Queued(0, one, (), items, 10 * items, columns=True)


def slow(items_max: int = 10_000) -> Mailbox:
    """One whose inputs take a tenth of STEP_NS each."""
    mailbox = make(items_max, bytes_max=10**6)
    mailbox.put_inside(delivery(1, items=100, source="before"))
    step(mailbox)
    return mailbox


def step(mailbox: Mailbox) -> list[Queued]:
    taken = drain(mailbox)
    mailbox.stepped(sum(len(one.input.items) for one in taken if isinstance(one.input, Delivery)) * STEP_NS // 10)
    return taken


def test_records_never_wait_for_a_whole_envelope_whose_inputs_take_long() -> None:
    mailbox, ticket = slow(), Recorder()
    mailbox.put_telemetry(delivery(1, items=100, ticket=ticket), BLOCK)
    parts: list[Queued] = []
    for number in range(1, 801, 80):
        mailbox.put_telemetry(records(number), BLOCK)
        *some, last = step(mailbox)
        assert isinstance(last.input, ColumnDelivery)
        assert sum(one.items for one in some) <= STEPPED_ITEMS_MIN
        parts += some
    assert consume(parts) == {(0, "s", 0): 100}
    assert [len(part.tickets) for part in parts] == [0] * (len(parts) - 1) + [1], "it is told of all of it"
    assert not mailbox.waiting
    assert mailbox.items == 0


def test_parts_are_as_large_as_the_time_of_their_inputs_says() -> None:
    mailbox = slow()
    mailbox.put_telemetry(delivery(1, items=2_000), BLOCK)
    sizes = []
    while mailbox.waiting:
        (part,) = drain(mailbox)
        sizes.append(part.items)
        mailbox.stepped(part.items * STEP_NS // 1_100)
    assert sizes == [16, 32, 64, 128, 256, 512, 992]
    assert not mailbox.is_slow


def test_inputs_that_take_no_time_are_stepped_all_together() -> None:
    mailbox = make(items_max=10_000, bytes_max=10**6)
    for number in range(1, 3_001, 1_000):
        mailbox.put_telemetry(delivery(number, items=1_000), BLOCK)
        mailbox.stepped(STEP_NS)
    assert [one.items for one in drain(mailbox)] == [1_000] * 3


def test_other_sources_have_their_turn_between_the_parts_of_an_envelope() -> None:
    mailbox = slow()
    for source in "ab":
        mailbox.put_telemetry(delivery(1, items=40, source=source), BLOCK)
    sources = [one.input.source for _ in range(6) for one in step(mailbox) if isinstance(one.input, Delivery)]
    assert sources == ["a", "b"] * 3


def test_tells_in_one_piece_are_parted_too_and_nothing_passes_them() -> None:
    mailbox = slow()
    mailbox.put_inside(delivery(1, items=40))
    mailbox.put_inside(delivery(41, items=1))
    taken: list[Queued] = []
    while mailbox.waiting:
        some = step(mailbox)
        assert sum(one.items for one in some) <= STEPPED_ITEMS_MIN
        taken += some
    assert consume(taken) == {(0, "s", 0): 41}


def test_what_was_left_is_passed_by_nothing_that_came_later() -> None:
    mailbox = slow()
    mailbox.put_back([delivery(1, items=40), delivery(41, items=40)])
    mailbox.put_telemetry(delivery(81), BLOCK)
    taken: list[Queued] = []
    while mailbox.waiting:
        taken += step(mailbox)
    assert consume(taken) == {(0, "s", 0): 81}


@pytest.mark.parametrize("seed", range(30))
def test_no_ticket_is_lost_and_no_mark_left_behind_whatever_comes(seed: int) -> None:
    chance = random.Random(seed)
    policies = {"a": BLOCK, "b": DROP_OLDEST, "c": sample(3), "d": DROP_OLDEST}
    mailbox = make(items_max=chance.randint(1, 20), bytes_max=chance.choice((50, 10_000)))
    put: list[Recorder] = []
    taken: list[Queued] = []
    ends: dict[tuple[int, str, int], int] = {}
    for _ in range(400):
        source, shard = chance.choice("abcd"), chance.randrange(2)
        key = (shard, source, 0)
        items = chance.choice((1, 1, 2, 5))
        again = chance.random() < 0.1
        first = chance.randint(1, ends.get(key, 0) + 1) if again else ends.get(key, 0) + 1
        ticket = Recorder()
        try:
            mailbox.put_telemetry(delivery(first, items, source, shard, ticket=ticket), policies[source])
        except Overloaded:
            continue
        put.append(ticket)
        ends[key] = max(ends.get(key, 0), first + items - 1)
        if chance.random() < 0.2:
            some = list(mailbox.take(chance.randint(1, 10), telemetry=chance.random() < 0.9))
            left = chance.randint(0, len(some))
            taken += some[:left]
            mailbox.put_back(some[left:])
            mailbox.stepped(chance.choice((0, STEP_NS, 10 * STEP_NS)))
    while mailbox.waiting:
        taken += mailbox.take(100, telemetry=True)
    assert consume(taken) == ends
    held = [id(ticket) for letter in taken for ticket in letter.tickets]
    assert sorted(held) == sorted(id(ticket) for ticket in put)
    assert mailbox.items == 0


def test_what_was_shed_is_said_although_a_note_follows_that_passes_numbers_for_others() -> None:
    mailbox = make(items_max=2)
    mailbox.put_telemetry(delivery(1, source="t"), DROP_OLDEST)
    mailbox.put_telemetry(delivery(4), DROP_OLDEST)
    mailbox.put_note(Queued(0, SequencesSkipped("s", 0, 0, last=5, because=""), items=0), DROP_OLDEST)
    mailbox.put_telemetry(delivery(1, items=2), DROP_OLDEST)
    (note,) = [letter.input for letter in drain(mailbox) if isinstance(letter.input, SequencesSkipped)]
    assert mailbox.counters.shed_items == 3
    assert (note.last, note.because) == (5, "shed: more came than could be taken")


def taken_sources(mailbox: Mailbox, items: int) -> list[str]:
    letters = mailbox.take(items, telemetry=True)
    return [letter.input.source for letter in letters if isinstance(letter.input, Delivery)]


def test_a_source_that_fills_the_lane_delays_another_by_a_turn() -> None:
    """Also where its letters are of many items each, as columns are."""
    mailbox = make(items_max=100_000, bytes_max=10**8)
    for number in range(1, 40_001):
        mailbox.put_telemetry(delivery(number, source="flood"), BLOCK)
    for number in range(1, 50_001, 1000):
        mailbox.put_telemetry(delivery(number, items=1000, source="columns"), BLOCK)
    mailbox.put_telemetry(delivery(1, source="quiet"), BLOCK)
    assert "quiet" in taken_sources(mailbox, 2000)


def test_a_source_that_finds_no_room_keeps_nobody_else_from_waiting() -> None:
    mailbox = make(items_max=10)
    for number in range(1, 11 + BLOCKED_COUNT_MAX):
        mailbox.put_telemetry(delivery(number, source="flood"), BLOCK)
    with pytest.raises(Overloaded):
        mailbox.put_telemetry(delivery(11 + BLOCKED_COUNT_MAX, source="flood"), BLOCK)
    mailbox.put_telemetry(delivery(1, source="quiet"), BLOCK)
    assert "quiet" in [source for _ in range(10) for source in taken_sources(mailbox, 10)]


def test_clear_hands_out_everything_that_waits() -> None:
    mailbox = make(items_max=1)
    tickets = [Recorder() for _ in range(4)]
    mailbox.put_inside(Queued(0, TimerDue("Drone/a", "t", 1)))
    mailbox.put_command(Queued(0, Ask("Drone/a", "c", b"")))
    for number, ticket in enumerate(tickets, start=1):
        mailbox.put_telemetry(delivery(number, ticket=ticket), BLOCK)
    assert len(mailbox.clear()) == 6
    assert not mailbox.waiting
    assert mailbox.items == 0


def test_it_says_what_waits_for_each_shard_and_since_when() -> None:
    """One shard that gets most of the inputs is found by it, also behind inputs of others."""
    mailbox, now_ns = make(items_max=100), 0
    mailbox.measure(lambda: now_ns)
    for now_ns in range(1, 4):
        mailbox.put_telemetry(delivery(now_ns, items=10, shard=2), BLOCK)
        mailbox.put_command(Queued(1, Ask("Drone/a", "", b"")))
        mailbox.turned()
    mailbox.put_telemetry(delivery(1, items=90, source="other", shard=2), BLOCK)  # waits for room
    assert mailbox.waiting_by_shard(1_000) == {1: (3, 1), 2: (120, 1)}
    assert mailbox.waiting_by_shard(4) == {1: (3, 1), 2: (10, 1)}, "a bounded look"
    list(mailbox.take(4, telemetry=True))
    assert mailbox.waiting_by_shard(1_000) == {2: (110, 2)}
