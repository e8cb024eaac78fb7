"""Packet ids over several links, against a broker that plays a script.

NATS gives an id of the last link to another message on the next one, although the session goes on. An acknowledgement
of the first would lose the second. And many packets that come in one piece, or one that comes in many.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator

import pytest

from stigmergy.base.system import SystemEntropy
from stigmergy.bus.mqtt import MqttBus, open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.testing.bus_rig import wait_until

TAKEN_S_MAX = 30.0
"""Well below the limit of a test of planted bugs: there it waits in vain."""


def packet_of(mid: int, payload: bytes, *, again: bool = False) -> bytes:
    body = b"\x00\x01a" + mid.to_bytes(2, "big") + payload
    return bytes([0x3A if again else 0x32, len(body)]) + body


class Script(asyncio.Protocol):
    """Accepts with the session present, grants subscriptions, and remembers which packet ids each link acknowledges."""

    def __init__(self) -> None:
        self.links: list[asyncio.Transport] = []
        self.acknowledged: list[list[int]] = []
        self.granted = 0
        self._data = b""

    def __call__(self) -> asyncio.Protocol:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.links.append(transport)
        self.acknowledged.append([])
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 2 and len(self._data) >= 2 + self._data[1]:
            packet, self._data = self._data[: 2 + self._data[1]], self._data[2 + self._data[1] :]
            match packet[0] >> 4:
                case 1:  # CONNECT
                    self.links[-1].write(b"\x20\x02\x01\x00")
                case 8:  # SUBSCRIBE
                    self.granted += 1
                    self.links[-1].write(b"\x90\x03" + packet[2:4] + b"\x01")
                case 4:  # PUBACK
                    self.acknowledged[-1].append(int.from_bytes(packet[2:4], "big"))
                case _:
                    pass

    def send(self, mid: int, payload: bytes, *, again: bool = False) -> None:
        self.links[-1].write(packet_of(mid, payload, again=again))


class Slow:
    """A handler that waits to be let go."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.go_on: dict[bytes, asyncio.Event] = {}

    async def __call__(self, message: BusMessage) -> None:
        self.calls.append(message.payload)
        await self.go_on.setdefault(message.payload, asyncio.Event()).wait()


@contextlib.asynccontextmanager
async def playing() -> AsyncIterator[tuple[Script, MqttBus, Slow]]:
    script, slow = Script(), Slow()
    server = await asyncio.get_running_loop().create_server(script, "127.0.0.1", 0)
    url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}?reconnect_s_max=0.05"
    bus = open_bus(url, "node", SystemEntropy())
    await bus.subscribe("a", slow)
    await bus.open()
    await wait_until(lambda: bus.is_up)
    try:
        yield script, bus, slow
    finally:
        for event in slow.go_on.values():
            event.set()
        await bus.close()
        for link in script.links:
            link.abort()
        server.close()
        await server.wait_closed()


async def next_link(script: Script) -> None:
    granted = script.granted
    script.links[-1].abort()
    await wait_until(lambda: script.granted > granted)


async def test_id_of_an_earlier_link_is_never_acknowledged() -> None:
    async with playing() as (script, _, slow):
        script.send(1, b"first")
        await wait_until(lambda: slow.calls == [b"first"])
        await next_link(script)
        script.send(1, b"second")
        await wait_until(lambda: slow.calls == [b"first", b"second"])
        slow.go_on[b"first"].set()
        await asyncio.sleep(0.1)
        assert script.acknowledged[-1] == []
        slow.go_on[b"second"].set()
        await wait_until(lambda: script.acknowledged[-1] == [1])


async def test_what_was_taken_while_the_link_was_down_is_not_acknowledged_unasked() -> None:
    async with playing() as (script, bus, slow):
        script.send(1, b"first")
        await wait_until(lambda: slow.calls == [b"first"])
        script.links[-1].abort()
        await wait_until(lambda: not bus.is_up)
        slow.go_on[b"first"].set()
        await wait_until(lambda: bus.is_up)
        await asyncio.sleep(0.1)
        assert script.acknowledged[-1] == []
        script.send(9, b"first", again=True)
        await wait_until(lambda: script.acknowledged[-1] == [9])


async def test_message_that_waits_takes_over_the_id_of_its_repetition() -> None:
    async with playing() as (script, bus, slow):
        for mid in (1, 2):
            script.send(mid, b"same")
        await wait_until(lambda: slow.calls == [b"same", b"same"])
        await next_link(script)
        for mid in (7, 8, 9):
            script.send(mid, b"same", again=True)
        await wait_until(lambda: len(slow.calls) == 3)
        assert bus.receipts.repeated == 2
        slow.go_on[b"same"].set()
        await wait_until(lambda: sorted(script.acknowledged[-1]) == [7, 8, 9])


async def test_repetition_on_the_same_link_is_put_aside_unless_it_says_something_else() -> None:
    async with playing() as (script, bus, slow):
        script.send(5, b"first")
        script.send(5, b"first", again=True)
        script.send(5, b"other", again=True)
        await wait_until(lambda: slow.calls == [b"first", b"other"])
        assert bus.receipts.repeated == 1
        slow.go_on[b"first"].set()
        await asyncio.sleep(0.1)
        assert script.acknowledged[-1] == []
        slow.go_on[b"other"].set()
        await wait_until(lambda: script.acknowledged[-1] == [5])


@pytest.mark.parametrize("piece_bytes", [1_000_000, 7])
async def test_messages_in_one_piece_and_in_many_are_all_taken(piece_bytes: int) -> None:
    payloads = [b"%d" % number for number in range(100)]
    packets = b"".join(packet_of(mid, payload) for mid, payload in enumerate(payloads, 1))
    async with playing() as (script, _, slow):
        for begin in range(0, len(packets), piece_bytes):
            script.links[-1].write(packets[begin : begin + piece_bytes])
            await asyncio.sleep(0)
        async with asyncio.timeout(TAKEN_S_MAX):
            await wait_until(lambda: len(slow.calls) == len(payloads))
        assert slow.calls == payloads
        for payload in payloads:
            slow.go_on[payload].set()
        await wait_until(lambda: script.acknowledged[-1] == list(range(1, len(payloads) + 1)))


async def test_messages_leave_nothing_to_the_garbage_collector() -> None:
    count = 1_000
    async with playing() as (script, _, slow):
        slow.go_on = {b"x": asyncio.Event()}
        slow.go_on[b"x"].set()
        gc.disable()
        gc.collect()
        gc.freeze()  # only what is made from here on counts: other tests have left objects in this process
        try:
            script.links[-1].write(b"".join(packet_of(mid, b"x") for mid in range(1, count + 1)))
            await wait_until(lambda: len(script.acknowledged[-1]) == count)
            found = gc.collect()
        finally:
            gc.unfreeze()
            gc.enable()
    assert found < count
