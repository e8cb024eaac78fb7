"""The tables beside the agents: what they remember, for how long, and what leaves first."""

from __future__ import annotations

from stigmergy.core.memory import PASTS_COUNT_MAX, Answers, Failures, Letter, Letters, Pasts, Remembered
from stigmergy.core.messages import SECOND_NS


def answer(name: str, time_ns: int = 0) -> Remembered:
    return Remembered("Drone/a", name, time_ns, position=1, refused=None)


def letter(name: str, size: int = 1) -> Letter:
    return Letter(name, "Drone/a", "s", "error", b"x" * size)


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
    letters = Letters(count_max=3, bytes_max=6)
    for name in "abc":
        letters.put(letter(name, 2))
    assert [one.letter for one in letters.all()] == ["a", "b", "c"]
    letters.put(letter("d", 0))
    assert [one.letter for one in letters.all()] == ["b", "c", "d"]
    letters.take("c")
    letters.put(letter("e", 5))
    assert [one.letter for one in letters.all()] == ["d", "e"]


def test_letters_are_taken_once() -> None:
    letters = Letters()
    letters.put(letter("a"))
    assert letters.get("a") == letter("a")
    letters.take("a")
    letters.take("a")
    assert letters.get("a") is None


def test_letters_past_the_limits_leave_oldest_first() -> None:
    letters = Letters(count_max=2)
    for name in "abc":
        letters.put(letter(name))
    assert [one.letter for one in letters.all()] == ["b", "c"]


def test_letters_are_bounded_by_bytes_also_after_a_restart() -> None:
    letters = Letters(bytes_max=10)
    for name in "ab":
        letters.put(letter(name, 5))
    again = Letters(bytes_max=10)
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
