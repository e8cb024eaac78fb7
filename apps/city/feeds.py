"""Sensors that send: by MQTT to the broker of their gateway, some by CoAP. What nobody has taken they send again.

MQTT is spoken by paho, one client for the sensors of a gateway: quality of service 1, so a reading may come twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from apps.city.plan import City, gateway_of, kind_of
from apps.city.readings import Leak, Readings

COAP_EVERY = 50
"""One of so many sensors speaks CoAP."""
COAP_S, COAP_TRIES = 3.0, 40
GARBAGE_EVERY = 7
"""Every so many steps a sensor of each gateway sends something malformed, which must be refused."""


def topic_of(sensor: str) -> str:
    """Where a sensor publishes."""
    return f"sensor/{sensor}/{'raw' if kind_of(sensor) == 'gas' else 'level'}"


class Feed:
    """The sensors of one gateway."""

    def __init__(self, gateway: str, city: City, seed: int, leaks: list[Leak], mqtt_port: int, coap: str) -> None:
        self.gateway = gateway
        self.readings = Readings(city, city.districts_of(gateway), seed, leaks)
        self.sent = 0
        self.coap_unsent = 0
        self._coap = coap
        self._by_coap = {one for one in self.readings.gas if int(one.rpartition("-")[2]) % COAP_EVERY == 5}
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"sensors-{gateway}", clean_session=False)
        self._client.max_inflight_messages_set(200)
        self._client.connect("127.0.0.1", mqtt_port, keepalive=30)
        self._client.loop_start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: Any = None

    async def send(self, step: int, over_s: float) -> list[bytes]:
        """What all sensors say in this step, spread over so many seconds. Returns the payloads of the gas sensors."""
        loop = asyncio.get_running_loop()
        began_s, payloads = loop.time(), []
        everything = await asyncio.to_thread(lambda: list(self.readings.at(step)))
        for number, (sensor, payload) in enumerate(everything):
            if sensor in self._by_coap:
                task = asyncio.ensure_future(self._put(sensor, payload))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._client.publish(topic_of(sensor), payload, qos=1)
            self.sent += 1
            if kind_of(sensor) == "gas":
                payloads.append(payload)
            due_s = began_s + over_s * (number + 1) / len(everything)
            if loop.time() < due_s - 0.02:
                await asyncio.sleep(due_s - loop.time())
        if step % GARBAGE_EVERY == 0:
            self._client.publish(topic_of(self.readings.gas[0]), b"not a reading", qos=1)
        return payloads

    async def _put(self, sensor: str, payload: bytes) -> None:
        import aiocoap
        from aiocoap.error import Error

        if self._context is None:
            self._context = asyncio.ensure_future(aiocoap.Context.create_client_context(transports=["udp6"]))
        context = await self._context
        for _ in range(COAP_TRIES):
            request = aiocoap.Message(code=aiocoap.PUT, uri=f"coap://{self._coap}/{topic_of(sensor)}", payload=payload)
            try:
                async with asyncio.timeout(COAP_S):
                    answer = await context.request(request).response
                if answer.code.is_successful():
                    return
            except (TimeoutError, Error, OSError):
                pass
            await asyncio.sleep(1.0)
        self.coap_unsent += 1

    async def close(self) -> None:
        """Waits until what is under way has been taken."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=COAP_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            await (await self._context).shutdown()
        await asyncio.to_thread(self._client.loop_stop)
        self._client.disconnect()


class Truth:
    """Writes down what really happens: leaks by the wall clock, and what raw bytes look like."""

    def __init__(self, folder: Path, leaks: list[Leak]) -> None:
        self._facts = (folder / "world.jsonl").open("a", encoding="utf-8")
        self._raw = (folder / "raw.bin").open("ab")
        self._leaks = leaks

    def note(self, fact: str, **fields: Any) -> None:
        """One line."""
        self._facts.write(json.dumps({"fact": fact, "at_s": time.time(), **fields}) + "\n")
        self._facts.flush()

    def step(self, step: int) -> None:
        """A step begins."""
        for one in self._leaks:
            if step in (one.begin, one.end):
                self.note(
                    "began" if step == one.begin else "ended",
                    leak=one.name,
                    what=one.what,
                    district=one.district,
                    gateway=gateway_of(one.district),
                    x=one.x,
                    y=one.y,
                )

    def sent(self, payloads: list[bytes]) -> None:
        """Two channels of each raw reading: eight bytes that are found nowhere else."""
        self._raw.write(b"".join(payload[4:12] for payload in payloads))

    def close(self) -> None:
        """All is written."""
        self._facts.close()
        self._raw.close()
