"""Asking the owner of a shard that moves: again while nobody answers, and only where asking twice is harmless."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stigmergy.app.cluster_client import RetryingClient
from stigmergy.base.errors import JournalUnknown, LinkDown, NotOwned, NotRunning, StigmergyError
from stigmergy.control.protocol import (
    AnyRequest,
    EnrolRequest,
    LettersRequest,
    ObserveRequest,
    RetryRequest,
    SendRequest,
    StateRequest,
    StatusRequest,
    refusal,
    single,
    write_reply,
)
from stigmergy.sim.run import Run

ANSWER = write_reply(single({"accepted": True}))
SEND = SendRequest(agent="A/a", command="Go", command_id="1")
OBSERVE = ObserveRequest(agent="A/a", event="Seen")


def write_error(error: StigmergyError) -> bytes:
    return write_reply(refusal(error))


class Shard:
    """A shard whose owners answer one after the other as the test says: with a line, or by an error."""

    def __init__(self, *answers: bytes | StigmergyError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def ask(self, request: bytes) -> AsyncIterator[bytes]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, StigmergyError):
            raise answer
        yield answer
        raise LinkDown("cut")


def patient(shard: Shard, *, others: bool = True) -> RetryingClient:
    async def is_anybody_there() -> bool:
        return others

    return RetryingClient(shard, is_anybody_there)


def asked(shard: Shard, request: AnyRequest) -> tuple[bytes, float]:
    """The first line, and how long it took."""
    world = Run(1)

    async def main() -> tuple[bytes, float]:
        began_s = asyncio.get_running_loop().time()
        lines = patient(shard).ask(request)
        line = await anext(lines)
        return line, asyncio.get_running_loop().time() - began_s

    result: tuple[bytes, float] = world.run(main())
    return result


@pytest.mark.parametrize("request_", [SEND, OBSERVE, StateRequest(agent="A/a"), LettersRequest()])
def test_it_is_asked_again_while_nobody_is_there(request_: AnyRequest) -> None:
    shard = Shard(NotRunning("nobody"), NotRunning("nobody"), ANSWER)
    assert asked(shard, request_)[0] == ANSWER
    assert shard.asked == 3


@pytest.mark.parametrize(
    "moved",
    [
        LinkDown("broke"),
        write_error(NotOwned("elsewhere")),
        write_error(NotRunning("stopping")),
        write_error(JournalUnknown("fenced")),
    ],
)
def test_a_command_with_an_id_is_sent_again_when_its_owner_moved_away(moved: Any) -> None:
    shard = Shard(moved, ANSWER)
    assert asked(shard, SEND)[0] == ANSWER
    assert shard.asked == 2


def test_what_is_not_harmless_twice_is_said_once() -> None:
    for request in (
        OBSERVE,
        SendRequest(agent="A/a", command="Go"),
        RetryRequest(letter="0.1.1"),
        EnrolRequest(public_key="aa"),
    ):
        shard = Shard(LinkDown("broke"), ANSWER)
        with pytest.raises(NotRunning, match="whether it was taken is unknown"):
            asked(shard, request)
        assert shard.asked == 1
        shard = Shard(write_error(JournalUnknown("fenced")), ANSWER)
        assert asked(shard, request)[0] == write_error(JournalUnknown("fenced"))
        assert shard.asked == 1


def test_what_was_observed_is_said_again_where_nothing_was_taken() -> None:
    shard = Shard(write_error(NotOwned("nothing was done")), write_error(NotRunning("stopping")), ANSWER)
    assert asked(shard, OBSERVE)[0] == ANSWER
    assert shard.asked == 3
    for request in (
        SendRequest(agent="A/a", command="Go"),
        RetryRequest(letter="0.1.1"),
        EnrolRequest(public_key="aa"),
    ):
        shard = Shard(write_error(NotOwned("elsewhere")), ANSWER)
        assert asked(shard, request)[0] == write_error(NotOwned("elsewhere"))


def test_a_refusal_is_passed_on_as_it_is() -> None:
    shard = Shard(write_error(StigmergyError("no such agent")))
    assert asked(shard, SEND)[0] == write_error(StigmergyError("no such agent"))
    assert shard.asked == 1


@pytest.mark.parametrize(
    ("request_", "others", "within_s"),
    [(SEND, True, 15.0), (OBSERVE, True, 15.0), (SEND, False, 3.5), (StatusRequest(), True, 1.0)],
)
def test_the_time_is_bounded(request_: AnyRequest, others: bool, within_s: float) -> None:
    shard = Shard(NotRunning("nobody is there"))
    world = Run(1)

    async def main() -> float:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(NotRunning, match="nobody is there"):
            await anext(patient(shard, others=others).ask(request_))
        return asyncio.get_running_loop().time() - began_s

    took_s = world.run(main())
    assert within_s - 1 < took_s <= within_s
    assert 3 <= shard.asked < 40


def test_an_answer_that_breaks_off_says_so() -> None:
    world = Run(1)

    async def main() -> None:
        lines = patient(Shard(ANSWER)).ask(SEND)
        assert await anext(lines) == ANSWER
        with pytest.raises(NotRunning, match="broke while the answer came"):
            await anext(lines)

    world.run(main())
