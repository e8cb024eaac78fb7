"""The second door: sensors that speak CoAP put their readings to `coap://gateway/sensor/<id>/raw` or `…/level`.

    async with coap_door(live, "127.0.0.1", 5683) as door: ...

The payload is the same as over MQTT. 2.04 means that the reading is with the gateway; 4.00 says what is wrong with it,
and it is counted; 5.03 means: send it again. CoAP repeats what it does not hear answered, so a reading may come twice:
its number tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from apps.city.layouts import LEVEL, READING
from apps.city.messages import Levelled, Sampled
from stigmergy import Event, Live, StigmergyError

if TYPE_CHECKING:
    from aiocoap import Message

PATH_LEVELS = 3


class Door:
    """How many came in, and how many were refused."""

    def __init__(self) -> None:
        self.taken = 0
        self.refused = 0
        self.last_refusal = ""


def reading_of(path: tuple[str, ...], payload: bytes) -> tuple[str, Event]:
    """The sensor and what it has measured. Raises StigmergyError with the reason."""
    if len(path) == PATH_LEVELS and path[0] == "sensor" and path[2] == "raw":
        return f"GasSensor/{path[1]}", Sampled(**READING.read(payload))
    if len(path) == PATH_LEVELS and path[0] == "sensor" and path[2] == "level":
        return f"Meter/{path[1]}", Levelled(**LEVEL.read(payload))
    raise StigmergyError(f"there is nothing at /{'/'.join(path)}; put to /sensor/<id>/raw or /sensor/<id>/level")


@contextlib.asynccontextmanager
async def coap_door(live: Live, host: str, port: int) -> AsyncIterator[Door]:
    """Takes readings until the block ends."""
    import aiocoap
    from aiocoap import resource

    door = Door()

    class Readings(resource.Resource):  # type: ignore[misc]
        """Everything below the root."""

        async def needs_blockwise_assembly(self, request: Any) -> bool:
            return False

        async def render(self, request: Message) -> Message:
            try:
                address, event = reading_of(tuple(request.opt.uri_path), request.payload)
            except StigmergyError as error:
                door.refused += 1
                door.last_refusal = str(error)
                return aiocoap.Message(code=aiocoap.BAD_REQUEST, payload=str(error).encode())
            try:
                await live.observe(address, event)
            except StigmergyError as error:
                return aiocoap.Message(code=aiocoap.SERVICE_UNAVAILABLE, payload=str(error).encode())
            door.taken += 1
            return aiocoap.Message(code=aiocoap.CHANGED)

    context = await aiocoap.Context.create_server_context(Readings(), bind=(host, port), transports=["udp6"])
    try:
        yield door
    finally:
        await context.shutdown()
