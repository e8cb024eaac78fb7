"""The tables beside the agents: what they remember, for how long, and what leaves first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.command_ids import new_command_id
from stigmergy.shard.memory import PASTS_COUNT_MAX, Answers, DeadLetter, DeadLetters, Failures, Pasts, Remembered

NOON_NS = 1_800_000_000 * SECOND_NS


def answer(name: str, time_ns: int = 0) -> Remembered:
    return Remembered("Drone/a", name, time_ns, position=1, refused=None)


def timed_id(after_s: float, own: int = 0) -> str:
    return new_command_id(NOON_NS + int(after_s * SECOND_NS), own.to_bytes(10, "big"))


def at(command_id: str, after_s: float, agent: str = "Drone/a") -> Remembered:
    return Remembered(agent, command_id, NOON_NS + int(after_s * SECOND_NS), position=1, refused=None)


def letter(name: str, size: int = 1) -> DeadLetter:
    return DeadLetter(name, "Drone/a", "s", "error", b"x" * size)


def test_answers_are_remembered_until_they_are_too_old() -> None:
    answers = Answers(age_ns_max=10, count_min=0)
    answers.put(answer("a", 0))
    answers.put(answer("b", 5))
    answers.prune(10)
    assert answers.get("Drone/a", "a") == answer("a")
    answers.prune(11)
    assert answers.get("Drone/a", "a") is None
    assert answers.all() == [answer("b", 5)]
    answers.prune(100)
    assert answers.all() == []


def test_a_clock_that_jumps_takes_no_answer_of_the_last_ones_away() -> None:
    answers = Answers(count_min=2)
    for name in "abc":
        answers.put(answer(name, 0))
    answers.prune(60 * 365 * 24 * 3600 * SECOND_NS)
    assert [one.command_id for one in answers.all()] == ["b", "c"]


def test_answers_past_the_limit_leave_oldest_first() -> None:
    answers = Answers(count_max=2, count_min=0)
    for name in "abc":
        answers.put(answer(name))
    answers.prune(0)
    assert [one.command_id for one in answers.all()] == ["b", "c"]
    other = Answers()
    other.restore(answers.all())
    assert other.all() == answers.all()


def test_answers_are_pruned_to_their_bounds_exactly() -> None:
    answers = Answers(count_max=4, age_ns_max=10, count_min=2)
    for number in range(6):
        answers.put(answer(str(number), number))
    answers.prune(11)
    assert [one.command_id for one in answers.all()] == ["2", "3", "4", "5"], "no more than four"
    answers.prune(12)
    assert len(answers.all()) == 4, "ten old, and not older"
    answers.prune(13)
    assert len(answers.all()) == 3
    answers.prune(100)
    assert len(answers.all()) == 2, "two whatever their age"


def test_letters_at_their_limits_stay() -> None:
    letters = DeadLetters(count_max=3, bytes_max=6)
    for name in "abc":
        letters.put(letter(name, 2))
    assert [one.letter for one in letters.all()] == ["a", "b", "c"]
    letters.put(letter("d", 0))
    assert [one.letter for one in letters.all()] == ["b", "c", "d"]
    letters.take("c")
    letters.put(letter("e", 5))
    assert [one.letter for one in letters.all()] == ["d", "e"]


def test_letters_are_taken_once() -> None:
    letters = DeadLetters()
    letters.put(letter("a"))
    assert letters.get("a") == letter("a")
    letters.take("a")
    letters.take("a")
    assert letters.get("a") is None


def test_letters_past_the_limits_leave_oldest_first() -> None:
    letters = DeadLetters(count_max=2)
    for name in "abc":
        letters.put(letter(name))
    assert [one.letter for one in letters.all()] == ["b", "c"]


def test_letters_are_bounded_by_bytes_also_after_a_restart() -> None:
    letters = DeadLetters(bytes_max=10)
    for name in "ab":
        letters.put(letter(name, 5))
    again = DeadLetters(bytes_max=10)
    again.restore(letters.all())
    for table in (letters, again):
        table.put(letter("c", 4))
        assert [one.letter for one in table.all()] == ["b", "c"]
        table.take("c")
        table.put(letter("d", 5))
        assert [one.letter for one in table.all()] == ["b", "d"]


def test_failures_are_counted_within_their_time() -> None:
    failures = Failures()
    for second in (1, 2, 10):
        failures.add("Drone/a", second * SECOND_NS, within_s=9)
    assert failures.lately("Drone/a", 10 * SECOND_NS, within_s=9) == 2
    assert failures.lately("Drone/b", 10 * SECOND_NS, within_s=9) == 0
    assert failures.all() == [("Drone/a", [2 * SECOND_NS, 10 * SECOND_NS])]
    other = Failures()
    other.restore(failures.all())
    assert other.lately("Drone/a", 10 * SECOND_NS, within_s=1) == 1
    failures.forget("Drone/a")
    failures.forget("Drone/a")
    assert failures.all() == []


def test_a_failure_is_forgotten_when_its_time_is_over_to_the_nanosecond() -> None:
    failures = Failures()
    failures.add("Drone/a", 100, within_s=1)
    assert failures.lately("Drone/a", 99 + SECOND_NS, within_s=1) == 1
    assert failures.lately("Drone/a", 100 + SECOND_NS, within_s=1) == 0
    failures.add("Drone/a", 99 + SECOND_NS, within_s=1)
    assert failures.all() == [("Drone/a", [100, 99 + SECOND_NS])]
    failures.add("Drone/a", 100 + SECOND_NS, within_s=1)
    assert failures.all() == [("Drone/a", [99 + SECOND_NS, 100 + SECOND_NS])]


def test_failures_are_bounded() -> None:
    failures = Failures()
    for number in range(1_005):
        failures.add("Drone/a", number, within_s=60)
    assert failures.lately("Drone/a", 1_005, within_s=60) == 1_000


def test_a_table_is_shown_as_the_commit_that_is_on_disk_left_it() -> None:
    pasts: Pasts[list[int]] = Pasts()
    now: list[int] = []
    for position in (3, 3, 5, 6):
        pasts.keep(position, now.copy)
        now.append(position)
    assert pasts.at(2, now.copy) == []
    assert pasts.at(3, now.copy) == pasts.at(4, now.copy) == [3, 3]
    assert pasts.at(5, now.copy) == [3, 3, 5]
    assert pasts.at(6, now.copy) == now


def test_only_so_many_pasts_are_kept() -> None:
    pasts: Pasts[int] = Pasts()
    for position in range(1, PASTS_COUNT_MAX + 2):
        pasts.keep(position, lambda position=position: position)  # type: ignore[misc]
    assert pasts.at(0, lambda: 0) == 2
    fewer: Pasts[int] = Pasts()
    for position in range(1, PASTS_COUNT_MAX + 1):
        fewer.keep(position, lambda position=position: position)  # type: ignore[misc]
    assert fewer.at(0, lambda: 0) == 1
    assert pasts.at(PASTS_COUNT_MAX, lambda: 0) == PASTS_COUNT_MAX + 1


def test_a_flood_to_one_agent_takes_nothing_from_another_agent_or_client() -> None:
    answers = Answers(count_max=10, share_count_max=4)
    answers.put(at(timed_id(0), 0, "Drone/b"), "operator")
    answers.put(at("opaque", 0, "Drone/b"), "operator")
    answers.put(at(timed_id(0, 1), 0), "calm")
    for number in range(1, 100):
        answers.put(at(timed_id(number), number), "flood")
    assert answers.get("Drone/b", timed_id(0)) is not None
    assert answers.get("Drone/b", "opaque") is not None
    assert answers.get("Drone/a", timed_id(0, 1)) is not None
    assert [one.command_id for one in answers.all()][3:] == [timed_id(number) for number in range(96, 100)]


def test_a_flood_to_many_agents_pushes_out_its_own_ids() -> None:
    answers = Answers(count_max=10, share_count_max=4)
    for number in range(3):
        answers.put(at(timed_id(number), number), "operator")
    for number in range(3, 100):
        answers.put(at(timed_id(number), number, f"Drone/{number}"), "flood")
    assert len(answers.all()) == 10
    assert answers.clients() == ["operator"] * 3 + ["flood"] * 7
    assert [one.command_id for one in answers.all()][3:] == [timed_id(number) for number in range(93, 100)]


def test_what_is_forgotten_is_too_old_to_know_for_its_agent_and_client_alone() -> None:
    answers = Answers(share_count_max=2)
    for number in (1, 2, 3):
        answers.put(at(timed_id(number), number), "c")
    now_ns = NOON_NS + 4 * SECOND_NS
    assert answers.get("Drone/a", timed_id(1)) is None
    told = answers.refusal("Drone/a", "c", timed_id(1), now_ns)
    assert told is not None
    assert told.startswith(
        "too old to know: this id was made at 2027-01-15T08:00:01.000Z, and ids up to 2027-01-15T08:"
    )
    assert answers.refusal("Drone/a", "c", timed_id(1, 7), now_ns) is not None, "another of the same millisecond"
    assert answers.refusal("Drone/a", "c", timed_id(1.002), now_ns) is None
    assert answers.refusal("Drone/a", "d", timed_id(1), now_ns) is None
    assert answers.refusal("Drone/b", "c", timed_id(1), now_ns) is None


def test_opaque_ids_are_not_forgotten_but_new_ones_refused() -> None:
    answers = Answers(opaque_count_max=3, opaque_per_client_max=2)
    assert answers.refusal("Drone/a", "c", "1", NOON_NS) is None
    answers.put(at("1", 0), "c")
    answers.put(at("2", 0), "c")
    told = answers.refusal("Drone/a", "c", "3", NOON_NS)
    assert told is not None
    assert told.startswith("overloaded: too many unexpired ids: 2 of this client within 24 hours carry no time")
    assert told.endswith("use ids that carry their time (UUIDv7)")
    assert answers.refusal("Drone/a", "c", timed_id(0), NOON_NS) is None
    assert answers.refusal("Drone/a", "d", "1-of-d", NOON_NS) is None
    answers.put(at("1-of-d", 1), "d")
    told = answers.refusal("Drone/a", "e", "1-of-e", NOON_NS)
    assert told is not None
    assert "3 of clients within 24 hours" in told
    day_later_ns = NOON_NS + 86_400 * SECOND_NS + 1
    assert answers.refusal("Drone/a", "e", "1-of-e", day_later_ns) is None, "the oldest has expired"
    answers.put(at("1-of-e", 86_401), "e")
    assert [one.command_id for one in answers.all()] == ["2", "1-of-d", "1-of-e"]


def test_a_time_far_ahead_says_nothing() -> None:
    answers = Answers(share_count_max=1, opaque_per_client_max=2)
    answers.put(at(timed_id(301), 0), "c")
    answers.put(at(timed_id(302), 0), "c")
    assert len(answers.all()) == 2, "opaque: not forgotten"
    assert answers.floors() == []
    told = answers.refusal("Drone/a", "c", timed_id(303), NOON_NS)
    assert told is not None
    assert "ahead of this node's, 2027-01-15T08:05:03.000Z" in told
    assert told.endswith("set the sender's clock")
    assert answers.refusal("Drone/a", "c", timed_id(303), NOON_NS + 10 * SECOND_NS) is None
    answers.put(at(timed_id(2**37), 0), "d")
    assert "ms" in (answers.refusal("Drone/a", "c", timed_id(2**38 - 2**32), NOON_NS) or "")


def test_a_wrong_clock_of_ours_keeps_nobody_out() -> None:
    answers = Answers(count_min=0)
    answers.put(at(timed_id(0), 0), "c")
    years_ns = 10 * 365 * 86_400 * SECOND_NS
    answers.prune(NOON_NS + years_ns)
    assert answers.all() == []
    assert answers.refusal("Drone/a", "c", timed_id(0), NOON_NS + years_ns) is not None
    assert answers.refusal("Drone/a", "c", timed_id(1), NOON_NS + years_ns) is None


def test_floors_beyond_their_number_become_one_for_all_others() -> None:
    answers = Answers(share_count_max=0, floors_count_max=2)
    for number, name in enumerate("abca"):
        answers.put(at(timed_id(number), number, f"Drone/{name}"), "c")
    times_ms = [NOON_NS // 1_000_000 + number * 1_000 for number in range(4)]
    assert answers.floors() == [("", "", times_ms[1]), ("Drone/c", "c", times_ms[2]), ("Drone/a", "c", times_ms[3])]
    now_ns = NOON_NS + 9 * SECOND_NS
    assert answers.refusal("Drone/b", "c", timed_id(1), now_ns) is not None
    assert answers.refusal("Drone/new", "new", timed_id(1), now_ns) is not None
    assert answers.refusal("Drone/new", "new", timed_id(2), now_ns) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(("", "x", "y", "z")),
            st.one_of(st.integers(-400, 400), st.none()),
            st.sampled_from((0, 1, 1, 5, 40)),
        ),
        max_size=60,
    ),
    st.integers(0, 60),
)
def test_nothing_is_ever_done_twice(asked: list[tuple[str, str, int | None, int]], restored_at: int) -> None:
    """Whatever is asked of whom: a command that was done is remembered, or refused, or opaque and expired. And a table
    that was restored in between comes to the same."""

    def small() -> Answers:
        return Answers(8, 100 * SECOND_NS, 2, 3, 4, 3, 2)

    answers, whole, now_s = small(), small(), 0
    done: list[tuple[Remembered, str, bool]] = []
    for number, (agent, client, ahead_s, later_s) in enumerate(asked):
        now_s += later_s
        command_id = f"opaque-{number}" if ahead_s is None else timed_id(now_s + ahead_s, number)
        now_ns = NOON_NS + now_s * SECOND_NS
        if number == restored_at:
            taken, answers = answers, small()
            answers.restore(taken.all(), taken.clients(), taken.floors())
        if answers.refusal(agent, client, command_id, now_ns) is None:
            answers.put(at(command_id, now_s, agent), client)
            whole.put(at(command_id, now_s, agent), client)
            done.append((at(command_id, now_s, agent), client, ahead_s is None or ahead_s > 300))
        answers.prune(now_ns)
        whole.prune(now_ns)
        assert (answers.all(), answers.floors()) == (whole.all(), whole.floors())
        assert len(answers.all()) <= 8
        assert len(answers.floors()) <= 3
        for one, of_client, opaque in done:
            known = answers.get(one.agent, one.command_id) is not None
            expired = opaque and now_ns - one.time_ns > 100 * SECOND_NS
            assert known or expired or answers.refusal(one.agent, of_client, one.command_id, now_ns) is not None


def test_who_has_the_most_is_known_also_when_many_have_become_fewer() -> None:
    answers = Answers(count_max=6, count_min=0)
    for number in range(3):
        answers.put(at(timed_id(number), number), "gone")
    for number in range(3, 5):
        answers.put(at(timed_id(number), number), "few")
    answers.prune(NOON_NS + 86_402 * SECOND_NS + 1)  # all of "gone"
    answers.prune(NOON_NS + 86_403 * SECOND_NS + 1)  # one of "few"
    for number in range(10, 16):
        answers.put(at(timed_id(number), 86_404), "many")
    assert answers.clients() == ["few", *["many"] * 5]
    assert answers.refusal("Drone/a", "many", timed_id(10), NOON_NS) is not None
    for number in range(20, 40):
        answers.put(at(timed_id(number), 86_404, f"Drone/{number}"), f"new-{number}")
    assert len(answers.all()) == 6
    assert len(answers.clients()) == len(set(answers.clients())), "one each"


def test_an_answer_that_is_told_twice_is_kept_once() -> None:
    answers = Answers()
    answers.put(at(timed_id(1), 1), "c")
    answers.put(at(timed_id(1), 2), "d")
    assert (answers.all(), answers.clients()) == ([at(timed_id(1), 2)], ["d"])


def test_a_log_from_before_the_limits_is_remembered_as_it_was() -> None:
    """Opaque ids beyond their limit, none of which has expired: only the limit of all takes the oldest away."""
    answers = Answers(count_max=6, opaque_count_max=3, opaque_per_client_max=2)
    for number in range(8):
        answers.put(at(f"old-{number}", number))
    assert [one.command_id for one in answers.all()] == [f"old-{number}" for number in range(2, 8)]
    answers.put(at(timed_id(9), 9))
    assert answers.get("Drone/a", timed_id(9)) is not None, "what is new does not leave for what is too many"
    again = Answers()
    again.restore(answers.all(), floors=[("", "", 5), ("Drone/a", "c", 7)])
    assert again.floors() == [("", "", 5), ("Drone/a", "c", 7)]
