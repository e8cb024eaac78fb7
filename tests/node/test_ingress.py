"""The door: order per source, gaps within bounds, repetitions, overload, names that are not for outsiders."""

import pytest

from stigmergy.agents.codec import Envelope, encode, open_envelope, pack_envelope
from stigmergy.agents.messages import Event
from stigmergy.base.errors import Malformed, Overloaded, StaleEpoch, TooLarge
from stigmergy.node.ingress import Ingress
from stigmergy.node.mailbox import Ticket
from stigmergy.shard.gaps import Accept

SECOND_NS = 1_000_000_000


class Seen(Event):
    number: int


class Recorder:
    def resolve(self) -> None:
        raise AssertionError("nobody resolves a ticket at the door")

    def fail(self, error: Exception) -> None:
        raise AssertionError("nobody fails a ticket at the door")


def make(consumed: dict[tuple[str, int], int] | None = None, early_max: int = 3) -> Ingress[Envelope]:
    known = consumed or {}
    return Ingress(
        lambda source, incarnation: known.get((source, incarnation), 0),
        gap_wait_ns=5 * SECOND_NS,
        gap_deliveries_max=early_max,
    )


def envelope(
    sequence: int, items: int = 1, source: str = "s", incarnation: int = 0, epoch: int = 0, lost: int = 0
) -> Envelope:
    bodies = [("Drone/a", b"x")] * items
    return Envelope(1, source, incarnation, epoch, sequence, bodies, lost)


def admit(
    ingress: Ingress[Envelope], one: Envelope, now_ns: int = 0, ticket: Recorder | None = None
) -> list[Accept[Envelope, Ticket]]:
    return ingress.admit(one, 10, (ticket,) if ticket else (), now_ns)


def told(accepted: list[Accept[Envelope, Ticket]]) -> list[tuple[int, int]]:
    return [(one.envelope.sequence, one.skip_to) for one in accepted]


def next_ns(ingress: Ingress[Envelope]) -> int | None:
    return ingress.next_ns


def test_what_comes_in_order_goes_through_at_once() -> None:
    ingress = make()
    assert told(admit(ingress, envelope(1, 3))) == [(1, 0)]
    assert told(admit(ingress, envelope(4))) == [(4, 0)]
    assert ingress.next_ns is None


def test_the_marks_say_where_a_source_stands_after_a_restart() -> None:
    ingress = make({("s", 0): 10})
    assert told(admit(ingress, envelope(11))) == [(11, 0)]
    assert told(admit(ingress, envelope(5, 3))) == [(5, 0)], "the step passes repetitions over and acknowledges them"


def test_what_comes_early_waits_for_what_is_missing() -> None:
    ingress = make()
    assert not admit(ingress, envelope(2))
    assert not admit(ingress, envelope(4))
    assert told(admit(ingress, envelope(1))) == [(1, 0), (2, 0)]
    assert told(admit(ingress, envelope(3))) == [(3, 0), (4, 0)]
    assert ingress.counters.early == 2
    assert ingress.counters.gaps == 0


def test_an_early_one_that_is_filled_by_a_longer_one_is_let_through_as_a_repetition() -> None:
    ingress = make()
    assert not admit(ingress, envelope(3, 2))
    assert told(admit(ingress, envelope(1, 9))) == [(1, 0), (3, 0)]


def test_a_gap_is_declared_when_the_wait_is_over() -> None:
    ingress = make()
    assert not admit(ingress, envelope(5, 2), now_ns=SECOND_NS)
    assert not admit(ingress, envelope(8), now_ns=2 * SECOND_NS)
    assert next_ns(ingress) == 6 * SECOND_NS
    assert not ingress.overdue(6 * SECOND_NS - 1)
    assert told(ingress.overdue(6 * SECOND_NS)) == [(5, 5)]
    assert told(ingress.overdue(7 * SECOND_NS)) == [(8, 8)]
    assert next_ns(ingress) is None
    assert ingress.counters.gaps == 2


def test_overdue_lets_through_what_follows_without_a_further_gap() -> None:
    ingress = make()
    assert not admit(ingress, envelope(5, 2))
    assert not admit(ingress, envelope(7))
    assert told(ingress.overdue(5 * SECOND_NS)) == [(5, 5), (7, 0)]


def test_a_gap_that_its_sender_declares_is_not_waited_for() -> None:
    ingress = make({("s", 0): 2})
    (accepted,) = admit(ingress, envelope(6, 2, lost=3))
    assert (accepted.skip_to, accepted.declared) == (6, True)
    assert told(admit(ingress, envelope(8))) == [(8, 0)]
    assert ingress.counters.gaps == 1
    assert ingress.next_ns is None


def test_more_may_be_declared_lost_than_is_missing() -> None:
    ingress = make({("s", 0): 2})
    assert told(admit(ingress, envelope(6, lost=1_000))) == [(6, 6)]
    assert told(admit(ingress, envelope(7, lost=1_000))) == [(7, 0)], "nothing is missing before it"
    assert told(admit(ingress, envelope(3, lost=1))) == [(3, 0)], "a repetition: the step passes it over"
    assert ingress.counters.gaps == 1


def test_less_declared_than_is_missing_waits_for_the_rest() -> None:
    ingress = make()
    assert not admit(ingress, envelope(6, 2, lost=3))
    assert not admit(ingress, envelope(9))
    assert told(admit(ingress, envelope(1, 2))) == [(1, 0), (6, 6)]
    assert told(admit(ingress, envelope(8))) == [(8, 0), (9, 0)]
    assert ingress.counters.gaps == 1


def test_what_was_declared_too_little_is_given_up_in_the_end_and_not_as_declared() -> None:
    ingress = make()
    assert not admit(ingress, envelope(6, lost=3))
    (accepted,) = ingress.overdue(5 * SECOND_NS)
    assert (accepted.skip_to, accepted.declared) == (6, False)


def test_an_early_one_that_is_repeated_with_more_lost_waits_for_less() -> None:
    ingress = make()
    assert not admit(ingress, envelope(6, 2))
    assert not admit(ingress, envelope(6, 1, lost=3))
    assert told(admit(ingress, envelope(1, 2))) == [(1, 0), (6, 6)]
    assert not admit(ingress, envelope(20))
    assert told(admit(ingress, envelope(20, lost=12))) == [(20, 20), (20, 0)], "the one that waited is a repetition"


def test_sources_and_incarnations_do_not_wait_for_each_other() -> None:
    ingress = make()
    assert not admit(ingress, envelope(2, source="a"))
    assert told(admit(ingress, envelope(1, source="b"))) == [(1, 0)]
    assert told(admit(ingress, envelope(1, source="a", incarnation=7))) == [(1, 0)]
    assert told(admit(ingress, envelope(1, source="a"))) == [(1, 0), (2, 0)]


def test_a_repetition_of_an_early_one_waits_with_it_and_the_longer_one_stays() -> None:
    ingress = make(early_max=1)
    first, second, third = Recorder(), Recorder(), Recorder()
    assert not admit(ingress, envelope(5, 3), ticket=first)
    assert not admit(ingress, envelope(5, 1), now_ns=SECOND_NS, ticket=second)
    assert not admit(ingress, envelope(5, 8), now_ns=SECOND_NS, ticket=third)
    (accepted,) = ingress.overdue(5 * SECOND_NS)
    assert len(accepted.envelope.items) == 8
    assert accepted.tickets == (first, second, third)
    assert ingress.counters.early == 1


def test_so_many_early_ones_may_wait_and_no_more() -> None:
    ingress = make(early_max=2)
    admit(ingress, envelope(3))
    admit(ingress, envelope(5))
    with pytest.raises(Overloaded, match="send what is missing first"):
        admit(ingress, envelope(7))
    assert ingress.counters.refused == 1
    assert told(admit(ingress, envelope(1, 2))) == [(1, 0), (3, 0)]
    assert not admit(ingress, envelope(7)), "one place is free again"


def test_forgetting_a_source_measures_it_against_the_marks_again() -> None:
    consumed = {("s", 0): 4}
    ingress = make(consumed)
    assert told(admit(ingress, envelope(5, 5))) == [(5, 0)]
    ingress.forget(("s", 0))
    assert told(admit(ingress, envelope(5, 5))) == [(5, 0)]
    ingress.forget(("s", 0))
    assert not admit(ingress, envelope(10))


def test_clear_hands_out_the_tickets_of_all_who_wait() -> None:
    ingress = make()
    tickets = [Recorder(), Recorder()]
    admit(ingress, envelope(2), ticket=tickets[0])
    admit(ingress, envelope(2, source="t"), ticket=tickets[1])
    assert ingress.clear() == tickets
    assert ingress.next_ns is None


def test_bytes_that_are_no_envelope_are_counted() -> None:
    ingress = make()
    for data in (b"", b"\xff", encode("nonsense"), encode([1, "", 0, 0, 1, []])):
        with pytest.raises(Malformed):
            ingress.open(data, open_envelope)
    with pytest.raises(TooLarge):
        ingress.open(bytes(2 * 1024 * 1024), open_envelope)
    assert ingress.counters.malformed == 5
    assert ingress.counters.envelopes == 0


def test_nobody_outside_may_speak_as_a_shard() -> None:
    ingress = make()
    with pytest.raises(StaleEpoch, match="names of shards are for shards"):
        ingress.open(pack_envelope("shard/0", [("Drone/a", Seen(number=1))], sequence=1), open_envelope)
    assert ingress.counters.refused == 1


def test_an_envelope_keeps_the_bytes_of_its_messages() -> None:
    ingress = make()
    opened = ingress.open(
        pack_envelope("s", [("Drone/a", Seen(number=1))], sequence=7, incarnation=2, epoch=3), open_envelope
    )
    assert (opened.source, opened.sequence, opened.incarnation, opened.epoch) == ("s", 7, 2, 3)
    assert opened.items == [("Drone/a", encode(Seen(number=1)))]


def test_what_waits_is_bounded_in_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.shard.gaps.EARLY_BYTES_MAX", 1_000)
    ingress = make(early_max=100)
    assert ingress.admit(envelope(5), 600, (), 0) == []
    with pytest.raises(Overloaded, match="1 such envelopes of 600 bytes wait already"):
        ingress.admit(envelope(9), 600, (), 0)
    assert ingress.admit(envelope(7), 300, (), 0) == []
    with pytest.raises(Overloaded, match="2 such envelopes of 900 bytes"):
        ingress.admit(envelope(5, 2), 800, (), 0)  # a longer one in its place
    assert ingress.counters.refused == 2
    assert told(ingress.admit(envelope(1, 6), 900, (), 0)) == [(1, 0), (5, 0), (7, 0)]
    assert ingress.admit(envelope(12), 1_000, (), 0) == []
