"""Questions between nodes, in virtual time: large answers, slow ones, and nodes that do not answer."""

import asyncio

import pytest

from stigmergy.base.errors import NotRunning, TooLarge
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.topics import Topics
from stigmergy.membership.bus_mesh import BusMesh
from stigmergy.network.exchange import CHUNK_BYTES, WINDOW
from stigmergy.network.questions import QUESTION_BYTES_MAX, Questions
from stigmergy.sim.loop import run

LARGE = bytes(range(256)) * (CHUNK_BYTES * (WINDOW + 2) // 256) + b"end"


async def opened(broker: MemoryBroker, node: str) -> Questions:
    bus = MemoryBus(broker, node)
    await bus.open()
    questions = Questions(BusMesh(bus, Topics("delivery", "north"), node, "ask"), SystemEntropy())
    await questions.start()
    await asyncio.sleep(0.1)
    return questions


def test_answer_of_any_size_comes_whole_and_is_made_once() -> None:
    async def main() -> None:
        broker = MemoryBroker()
        asking, answering = await opened(broker, "a"), await opened(broker, "b")
        asked: list[bytes] = []

        async def answer(line: bytes) -> bytes:
            asked.append(line)
            await asyncio.sleep(5.0)  # it is asked for again meanwhile
            assert len(answering._exchange._served) == 1, "which takes no further place"
            return LARGE if line == b"large\n" else line

        answering.answer = answer
        assert await asking.ask("b", b"large\n", 10.0) == LARGE
        assert await asking.ask("b", b"small\n", 10.0) == b"small\n"
        assert await asking.ask("b", b"small\n", 10.0) == b"small\n"
        assert asked == [b"large\n", b"small\n", b"small\n"], "each question once"
        await asking.stop()
        await answering.stop()

    run(main(), seed=1)


def test_silence_is_an_error_within_the_time() -> None:
    async def main() -> None:
        broker = MemoryBroker()
        asking, mute = await opened(broker, "a"), await opened(broker, "mute")
        for node in ("nobody", "mute"):
            begun_s = asyncio.get_running_loop().time()
            with pytest.raises(NotRunning, match=f"node '{node}' has not answered within 4 s"):
                await asking.ask(node, b"?\n", 4.0)
            assert asyncio.get_running_loop().time() - begun_s <= 4.5
        with pytest.raises(TooLarge, match="at most"):
            await asking.ask("mute", b"?" * (QUESTION_BYTES_MAX + 1), 4.0)
        await asking.stop()
        await mute.stop()

    run(main(), seed=1)
