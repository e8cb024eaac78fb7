"""The thread that asks an engine: a late or failing one denies within its time, and holds nobody up."""

import threading
from collections.abc import Callable

import pytest

from stigmergy.base.errors import PolicyFailed
from stigmergy.policy.engine import HANGS_MAX, PolicyAnswer, PolicyThread
from stigmergy.testing.bus_rig import wait_until

WAIT_S = 120.0


class Slow:
    """An engine of which each question waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0

    def ask(self, document: bytes) -> PolicyAnswer:
        self.asked += 1
        self.go.wait(WAIT_S)
        return PolicyAnswer(True)


class Failing:
    def ask(self, document: bytes) -> PolicyAnswer:
        raise SystemExit("no engine")


class Willing:
    def ask(self, document: bytes) -> PolicyAnswer:
        return PolicyAnswer(document == b"yes", "it said no")


def answers(engine: PolicyThread, document: bytes = b"yes") -> Callable[[], bool]:
    def ask() -> bool:
        try:
            return engine.ask(document).allowed
        except PolicyFailed:
            return False

    return ask


def test_an_engine_answers() -> None:
    engine = PolicyThread(Willing(), Willing, WAIT_S)
    assert engine.ask(b"yes") == PolicyAnswer(True, "it said no")
    assert engine.ask(b"no") == PolicyAnswer(False, "it said no")
    engine.close()


def test_19_a_late_answer_denies_and_is_not_taken_for_that_of_a_later_question() -> None:
    slow = Slow()
    engine = PolicyThread(slow, lambda: slow, 0.01)
    with pytest.raises(PolicyFailed, match="no ruling within 10 ms"):
        engine.ask(b"one")
    for _ in range(1_000):  # nobody waits again for a thread that is out
        with pytest.raises(PolicyFailed, match="earlier question"):
            engine.ask(b"two")
    assert slow.asked == 1
    slow.go.set()
    engine._within_s = WAIT_S
    while True:
        try:
            assert engine.ask(b"three").allowed
            break
        except PolicyFailed:
            continue
    assert slow.asked == 2
    engine.close()


def test_19_whatever_an_engine_raises_denies_and_the_next_question_is_asked() -> None:
    engine = PolicyThread(Failing(), Failing, WAIT_S)
    for _ in range(3):
        with pytest.raises(PolicyFailed, match="SystemExit: no engine"):
            engine.ask(b"")
    engine.close()


async def test_19_a_thread_that_hangs_is_replaced_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.policy.engine.HUNG_S", 0.0)
    hanging = [Slow() for _ in range(HANGS_MAX + 1)]
    left = iter(hanging[1:])
    engine = PolicyThread(hanging[0], lambda: next(left), 0.01)
    await wait_until(lambda: answers(engine)() or hanging[-1].asked > 0, WAIT_S)
    for _ in range(100):
        assert not answers(engine)()
    assert [one.asked for one in hanging] == [1] * len(hanging)
    for one in hanging:
        one.go.set()
    engine._within_s = WAIT_S
    await wait_until(answers(engine), WAIT_S)
    engine.close()
