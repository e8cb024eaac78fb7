"""What comes early waits for what is before it, but not for the disk."""

import asyncio
from collections.abc import Callable

from stigmergy.base.errors import SequenceGap
from stigmergy.bus.inbox import Arrival, Reception
from stigmergy.bus.port import BusMessage

COUNT = 20


async def settle() -> None:
    for _ in range(20 * COUNT):
        await asyncio.sleep(0)


async def test_early_messages_follow_each_other_without_waiting_for_the_disk() -> None:
    """Found on a real broker: where a write may wait a fifth of a second, each early message took that long."""
    reception, durable = Reception(), asyncio.Event()
    begun: list[int] = []
    told: list[int] = []

    async def handle(message: BusMessage) -> None:
        number = int(message.payload)
        if number != len(begun) + 1:
            raise SequenceGap(f"{number} is early", source="s", sequence=number)
        begun.append(number)
        await durable.wait()

    def tell(number: int) -> Callable[[], None]:
        return lambda: told.append(number)

    reception.subscribe("a", handle)
    for number in range(COUNT, 0, -1):
        reception.take(Arrival(BusMessage("a", str(number).encode()), tell(number)))
    await settle()
    assert begun == list(range(1, COUNT + 1))
    assert not told, "nothing is durable yet"
    durable.set()
    await settle()
    assert sorted(told) == begun
    assert reception.receipts.taken == COUNT
    await reception.close(1.0)
