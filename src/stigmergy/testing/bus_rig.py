"""The rig of the bus contract: a broker with links that can be cut, and receivers that remember.

Your own programs may use it too: `wait_until`, `HandlerLog` and `Marking` help to test anything on a bus.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import pytest

from stigmergy.base.errors import LinkDown, SequenceGap
from stigmergy.bus.port import Bus, BusMessage

WAIT_S = 240.0
"""How long is waited for what must happen; only a broken adapter uses it up."""
SEEN_CHARS_MAX = 500
"""Of each value that a failed wait prints."""


class BusRig(Protocol):
    """A broker for one test, and its links. All is done within one event loop."""

    has_properties: bool
    """Whether the protocol carries properties and content types."""

    async def bus(self, client_id: str) -> Bus:
        """A bus to the broker, not opened yet, whose link can be cut."""
        ...

    async def cut(self, client_id: str) -> None:
        """Breaks the link of this client and keeps it broken."""
        ...

    async def restore(self, client_id: str) -> None:
        """Lets the client connect again."""
        ...

    async def end(self) -> None:
        """The test is over: the broker and the links may go. The suite has closed the buses."""
        ...


class HandlerLog:
    """A handler that remembers what it was given."""

    def __init__(self) -> None:
        self.messages: list[BusMessage] = []

    async def __call__(self, message: BusMessage) -> None:
        self.messages.append(message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.payloads!r})"

    @property
    def payloads(self) -> list[bytes]:
        """All of them, repetitions too."""
        return [message.payload for message in self.messages]

    @property
    def first_payloads(self) -> list[bytes]:
        """Each once, in the order of its first arrival: a broker may repeat what was not acknowledged soon enough."""
        return list(dict.fromkeys(self.payloads))


class Marking:
    """A receiver that keeps a mark: takes numbers 1, 2, 3 … once each, lets early ones wait, passes over old ones."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.repeated = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(took {len(self.taken)}, {self.repeated} again)"

    async def __call__(self, message: BusMessage) -> None:
        number = int(message.payload)
        if number <= len(self.taken):
            self.repeated += 1
        elif number > len(self.taken) + 1:
            raise SequenceGap(f"{number} came, {len(self.taken) + 1} is still to come", sequence=number)
        else:
            self.taken.append(number)


async def wait_until(condition: Callable[[], bool], within_s: float = WAIT_S) -> None:
    """Waits for something that must come true."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline_s:
            code = condition.__code__
            seen = ", ".join(
                f"{name} = {repr(value)[:SEEN_CHARS_MAX]}"
                for name, value in inspect.getclosurevars(condition).nonlocals.items()
            )
            pytest.fail(f"not within {within_s} s: {code.co_name} at line {code.co_firstlineno}; {seen}")
        await asyncio.sleep(0.005)


async def publish_surely(bus: Bus, topic: str, numbers: range) -> None:
    """What a publisher does that must not lose anything: one after the other, again whenever the link was down."""
    for number in numbers:
        while True:
            try:
                await bus.publish(BusMessage(topic, b"%d" % number))
                break
            except LinkDown:
                await asyncio.sleep(0.01)


class Scene:
    """A rig in use: closes what a test has opened."""

    def __init__(self, rig: BusRig) -> None:
        self.rig = rig
        self.has_properties = rig.has_properties
        self.cut = rig.cut
        self.restore = rig.restore
        self._buses: list[Bus] = []

    async def bus(self, client_id: str, will: BusMessage | None = None, *, up: bool = True) -> Bus:
        """An open bus, once its link is up."""
        bus = await self.rig.bus(client_id)
        self._buses.append(bus)
        await bus.open(will)
        if up:
            await wait_until(lambda: bus.is_up)
        return bus

    async def hearing(self, client_id: str, pattern: str) -> tuple[Bus, HandlerLog]:
        """A bus that remembers what comes on a pattern."""
        bus, heard = await self.bus(client_id), HandlerLog()
        await bus.subscribe(pattern, heard)
        return bus, heard

    async def close(self) -> None:
        """Closes every bus, and the rig."""
        for bus in self._buses:
            await bus.close()
        await self.rig.end()


SceneTest = Callable[[Any, Scene], Coroutine[Any, Any, None]]


def on_a_scene(test: SceneTest) -> Callable[[Any, BusRig], None]:
    """Runs an async test under plain pytest, with everything closed afterwards."""

    async def play(contract: Any, rig: BusRig) -> None:
        scene = Scene(rig)
        try:
            await test(contract, scene)
        finally:
            await scene.close()

    @functools.wraps(test)
    def run(self: Any, rig: BusRig) -> None:
        asyncio.run(play(self, rig))

    # Pytest reads the arguments of a test from what it wraps; here it must see those of the wrapper.
    del run.__dict__["__wrapped__"]
    return run


async def wait_until_heard(sender: Bus, topic: str, heard: HandlerLog) -> None:
    """Publishes until a subscription, which takes effect a moment after the link is up, brings the first message."""
    deadline_s = asyncio.get_running_loop().time() + WAIT_S
    while not heard.messages:
        assert asyncio.get_running_loop().time() < deadline_s, "the subscription brings nothing"
        await sender.publish(BusMessage(topic, b"again"))
        await asyncio.sleep(0.02)
