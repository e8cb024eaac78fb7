"""A watch with history against a node that repeats itself, answers late and loses requests."""

import asyncio
from pathlib import Path

import pytest

import stigmergy
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Event
from stigmergy.base.errors import JournalUnknown
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.history import (
    HistoryReply,
    HistoryRequest,
    LogPosition,
    Portion,
    Published,
    read_frame,
    write_frame,
)
from stigmergy.bus.memory import open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.network import watching as watching_module

WAIT_S_MAX = 240.0


class Told(Event):
    n: int


def portion(first: int) -> Portion:
    items = [Published(0, 7, n, 0, 1, n, 0, "Meter/m", "count", encode(Told(n=n))) for n in range(first, first + 2)]
    return Portion({0: LogPosition(7, first + 1)}, items)


async def test_only_the_reply_to_the_last_request_counts(tmp_path: Path) -> None:
    """Replies that come twice, or late, have what was taken before."""
    url = f"memory:{tmp_path.name}"
    bus = open_bus(url, "node", SystemEntropy())
    before: list[HistoryReply] = []

    async def answer(message: BusMessage) -> None:
        request = read_frame(message.payload, HistoryRequest)
        if request.number == 0:
            replies = [HistoryReply(request.watch, 0)]
        else:
            at = request.after.get(0, LogPosition(7, 0))
            reply = HistoryReply(request.watch, request.number, portion(at.position + 1))
            replies = [*before[-2:], reply, reply, *before[-1:]]
            before.append(reply)
        for each in replies:
            await bus.publish(BusMessage(f"hall/local/nodes/a/published/{request.client}", write_frame(each)))

    await bus.subscribe("hall/local/nodes/+/history", answer)
    await bus.open()
    async with stigmergy.connect(url, fleet="hall", within_s=WAIT_S_MAX) as far:
        watching = far.watch("Meter/+/count", after="start")
        async with asyncio.timeout(WAIT_S_MAX):
            assert [(await anext(watching)).event["n"] for _ in range(40)] == list(range(1, 41))
        await watching.aclose()
    await bus.close()


async def test_a_node_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator: a node whose disk failed was not asked any more after its restart."""
    monkeypatch.setattr(watching_module, "REFUSED_PAUSE_S", 0.01)
    url = f"memory:{tmp_path.name}"
    bus = open_bus(url, "node", SystemEntropy())
    refusals = ["JournalUnknown", "JournalUnknown", "ConfigError"]

    async def answer(message: BusMessage) -> None:
        request = read_frame(message.payload, HistoryRequest)
        at = request.after.get(0, LogPosition(7, 0))
        reply = HistoryReply(request.watch, request.number, portion(at.position + 1))
        if request.number and refusals:
            reply = HistoryReply(request.watch, request.number, error="the disk has failed", kind=refusals.pop(0))
        await bus.publish(BusMessage(f"hall/local/nodes/a/published/{request.client}", write_frame(reply)))

    await bus.subscribe("hall/local/nodes/+/history", answer)
    await bus.open()
    async with stigmergy.connect(url, fleet="hall", within_s=WAIT_S_MAX) as far:
        watching = far.watch("Meter/+/count", after="start")
        async with asyncio.timeout(WAIT_S_MAX):
            with pytest.raises(JournalUnknown, match="node 'a': the disk has failed"):
                await anext(watching)
            assert [(await anext(watching)).event["n"] for _ in range(4)] == [1, 2, 3, 4], "said once"
        await watching.aclose()
    await bus.close()
