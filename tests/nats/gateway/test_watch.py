"""When a source is woken up, left alone, or begun anew."""

import itertools

from stigmergy.nats.gateway.crossing import AGAIN_S_MAX, AGAIN_S_MIN, STALL_S, SourceVerdict, SourceWatch


def test_a_source_that_has_everything_is_left_alone() -> None:
    watch = SourceWatch()
    assert [watch.look(float(second), sent=7, arrived=7) for second in range(100)] == [SourceVerdict.LEAVE] * 100


def test_a_source_on_its_way_is_left_alone_however_far_behind_it_is() -> None:
    watch = SourceWatch()
    looks = [watch.look(second / 2, sent=1_000, arrived=second) for second in range(500)]
    assert looks == [SourceVerdict.LEAVE] * 500
    assert watch.wakes == 0


def test_a_source_that_is_behind_and_does_not_move_is_woken_after_a_moment() -> None:
    watch = SourceWatch()
    assert watch.look(0.0, sent=7, arrived=7) is SourceVerdict.LEAVE
    assert watch.look(50.0, sent=7, arrived=7) is SourceVerdict.LEAVE
    assert watch.look(50.1, sent=8, arrived=7) is SourceVerdict.LEAVE
    assert watch.look(50.0 + STALL_S, sent=9, arrived=7) is SourceVerdict.WAKE
    assert watch.wakes == 1


def test_what_was_woken_has_time_and_each_time_more_until_it_moves() -> None:
    watch = SourceWatch()
    woken = [tenth / 10 for tenth in range(2_000) if watch.look(tenth / 10, sent=9, arrived=7) is SourceVerdict.WAKE]
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(woken)]
    assert woken[0] == STALL_S
    assert pauses[:3] == [AGAIN_S_MIN, 2 * AGAIN_S_MIN, 4 * AGAIN_S_MIN]
    assert max(pauses) == AGAIN_S_MAX
    assert watch.look(200.0, sent=9, arrived=8) is SourceVerdict.LEAVE
    again = [
        tenth / 10 for tenth in range(2_001, 2_060) if watch.look(tenth / 10, sent=9, arrived=8) is SourceVerdict.WAKE
    ]
    assert len(again) == 2, "what has moved begins with short pauses again"


def test_a_hub_that_was_away_leaves_the_source_a_moment_when_it_is_back() -> None:
    watch = SourceWatch()
    watch.look(0.0, sent=9, arrived=7)
    assert watch.look(STALL_S, sent=9, arrived=7) is SourceVerdict.WAKE
    watch.lost(100.0)
    assert watch.look(100.0 + STALL_S / 2, sent=9, arrived=7) is SourceVerdict.LEAVE
    assert watch.look(100.0 + STALL_S, sent=9, arrived=7) is SourceVerdict.WAKE


def test_a_site_whose_stream_began_anew_is_taken_from_its_beginning() -> None:
    watch = SourceWatch()
    watch.look(0.0, sent=500, arrived=500)
    assert watch.look(1.0, sent=3, arrived=500) is SourceVerdict.RENEW
    assert watch.look(1.1, sent=3, arrived=0) is SourceVerdict.LEAVE
    assert watch.look(1.1 + STALL_S, sent=3, arrived=0) is SourceVerdict.WAKE
    assert watch.renewals == 1


def test_only_a_source_that_stands_still_is_looked_at_soon() -> None:
    watch = SourceWatch()
    seen = []
    for sent, arrived in ((5, 3), (5, 4), (5, 4), (6, 4), (6, 6), (6, 6)):
        watch.look(0.0, sent, arrived)
        seen.append(watch.is_suspect)
    assert seen == [False, False, True, True, False, False]
