"""A bus that signs and verifies: what one turn publishes has one signature, and what is forged is seen by nobody."""

import asyncio
from collections.abc import Awaitable, Callable

from stigmergy.base.errors import Malformed, PeerError
from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, write_structured
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage, Gate
from stigmergy.bus.presence import PRESENT
from stigmergy.bus.signatures import Identity, read_signed
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.network.bus_keys import BusKeys
from stigmergy.network.signed_bus import SignedBus
from stigmergy.sim.loop import run
from stigmergy.testing.bus_rig import HandlerLog, wait_until

ROOT = "delivery/north"
EVENTS = f"{ROOT}/agents/Drone/D-17/events/battery"


class Stage:
    """Nodes on one broker, in virtual time."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.opened: list[SignedBus | MemoryBus] = []

    async def plain(self, name: str) -> MemoryBus:
        bus = MemoryBus(self.broker, name)
        await self._open(bus)
        return bus

    async def node(self, name: str, *, seed: bytes | None = None) -> SignedBus:
        signer = Ed25519Signer(seed or name.encode().ljust(32))
        loop = asyncio.get_running_loop()
        keys = BusKeys(f"{ROOT}/{name}", signer.public_key, Ed25519Verifier(), loop.time)
        me = Identity(f"{ROOT}/{name}", signer)
        bus = SignedBus(MemoryBus(self.broker, name), "mqtt://gateway:1883", me, keys, loop.time)
        await self._open(bus)
        return bus

    async def _open(self, bus: SignedBus | MemoryBus) -> None:
        self.opened.append(bus)
        await bus.open()
        await wait_until(lambda: bus.is_up)


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def live() -> None:
        stage = Stage()
        await scene(stage)
        for bus in stage.opened:
            await bus.close()

    run(live(), seed=1)


def presence(node: str, *agents: str) -> BusMessage:
    event = CloudEvent("1", "/x", PRESENT, datacontenttype=JSON, data={"node": node, "run": "1", "agents": agents})
    return BusMessage(f"{ROOT}/nodes/{node}/presence", write_structured(event), STRUCTURED, retained=True)


def event(number: int) -> BusMessage:
    return BusMessage(EVENTS, write_structured(CloudEvent(str(number), "/x", "T@1", data={})), STRUCTURED)


def test_what_a_turn_publishes_has_one_signature_and_keeps_its_order() -> None:
    async def scene(stage: Stage) -> None:
        sender, receiver, wire = await stage.node("a"), await stage.node("b"), await stage.plain("wire")
        heard, raw = HandlerLog(), HandlerLog()
        await receiver.subscribe(EVENTS, heard)
        await wire.subscribe(EVENTS, raw)
        messages = [event(number) for number in range(200)]
        await asyncio.gather(*(sender.publish(message) for message in messages))
        await sender.publish(event(200))
        await wait_until(lambda: len(heard.messages) == 201 and len(raw.messages) == 201)
        assert heard.messages == [*messages, event(200)]
        proofs = [read_signed(message)[1] for message in raw.messages]
        assert len({proof.signature for proof in proofs if proof is not None}) == 5  # 64, 64, 64, 8 and 1
        assert (sender.counters.bus_signed, receiver.counters.bus_verified) == (201, 201)

    play(scene)


def test_a_forged_flood_uses_nobodys_quota_and_no_handler_sees_it() -> None:
    async def scene(stage: Stage) -> None:
        sender, receiver, attacker = await stage.node("a"), await stage.node("b"), await stage.plain("x")
        admitted: list[bytes] = []
        handled = HandlerLog()

        def admit(source: str, message: BusMessage, open_count: int, open_all_count: int) -> bool:
            admitted.append(message.payload)
            return len(admitted) <= 3  # the quota of this source

        await receiver.subscribe(f"{ROOT}/agents/+/+/events/#", Gate(lambda topic: topic, admit, handled))
        await sender.publish(presence("a", "Drone/D-17"))
        await wait_until(lambda: receiver.counters.bus_verified >= 1)
        for number in range(100):
            await attacker.publish(event(number))
        await wait_until(lambda: receiver.counters.bus_forged == 100)
        for number in range(3):
            await sender.publish(event(number))
        await wait_until(lambda: len(handled.messages) == 3)
        assert handled.messages == [event(number) for number in range(3)]
        assert admitted == [event(number).payload for number in range(3)]

    play(scene)


def test_the_operator_is_told_once_for_each_reason_with_the_link() -> None:
    async def scene(stage: Stage) -> None:
        sender, receiver, attacker = await stage.node("a"), await stage.node("b"), await stage.plain("x")
        stranger = await stage.node("a2", seed=b"x" * 32)
        refused: list[tuple[str, str]] = []
        receiver.on_refused = lambda message, error: refused.append((message.topic, str(error)))
        await receiver.subscribe(EVENTS, HandlerLog())
        await receiver.subscribe(f"{ROOT}/agents/Drone/D-17/commands", HandlerLog())
        await sender.publish(presence("a", "Drone/D-17"))
        await wait_until(lambda: receiver.counters.bus_verified >= 1)
        for _ in range(3):
            await attacker.publish(event(1))
        await stranger.publish(event(1))
        await wait_until(lambda: receiver.counters.bus_forged == 4)
        unsigned, other = receiver.troubles()
        assert unsigned.code == other.code == "signature-refused"
        assert unsigned.startswith(
            f"3 messages from mqtt://gateway:1883 refused, the last one on {EVENTS}: it is not si"
        )
        assert "1 message from" in other
        assert f"key {Ed25519Signer(b'x' * 32).public_key.hex()[:16]}" in other
        assert refused == []  # whoever forges is told nothing
        await asyncio.sleep(3_600)
        assert receiver.troubles() == []

    play(scene)


def test_the_sender_of_a_spoilt_command_is_told() -> None:
    async def scene(stage: Stage) -> None:
        sender, receiver, wire = await stage.node("a"), await stage.node("b"), await stage.plain("wire")
        topic, refused, raw = f"{ROOT}/agents/Drone/D-17/commands", list[PeerError](), HandlerLog()
        receiver.on_refused = lambda _, error: refused.append(error)
        await wire.subscribe(topic, raw)
        await receiver.subscribe(topic, HandlerLog())
        await sender.publish(BusMessage(topic, event(1).payload, STRUCTURED))
        await wait_until(lambda: len(raw.messages) == 1)
        await wire.publish(BusMessage(topic, raw.payloads[0].replace(b'"id":"1"', b'"id":"2"'), STRUCTURED))
        await wait_until(lambda: len(refused) == 1)
        assert "not one of this message" in str(refused[0])

    play(scene)


def test_topics_of_devices_keep_their_bytes() -> None:
    async def scene(stage: Stage) -> None:
        sender, device = await stage.node("a"), await stage.plain("device")
        raw = HandlerLog()
        await device.subscribe("agents/7/orders", raw)
        await sender.publish(BusMessage("agents/7/orders", b'{"go":1}'))
        await wait_until(lambda: raw.payloads == [b'{"go":1}'])

    play(scene)


def test_who_listens_to_another_site_hears_there_who_runs_what() -> None:
    async def scene(stage: Stage) -> None:
        receiver, attacker, heard = await stage.node("b"), await stage.plain("x"), HandlerLog()
        loop = asyncio.get_running_loop()
        signer = Ed25519Signer(b"far".ljust(32))
        keys = BusKeys("delivery/south/far", signer.public_key, Ed25519Verifier(), loop.time)
        me = Identity("delivery/south/far", signer)
        far = SignedBus(MemoryBus(stage.broker, "far"), "memory", me, keys, loop.time)
        await stage._open(far)
        announced = presence("far", "Drone/D-17")
        await far.publish(BusMessage("delivery/south/nodes/far/presence", announced.payload, STRUCTURED, retained=True))
        await receiver.subscribe("delivery/+/agents/+/+/events/#", heard)
        await wait_until(lambda: receiver.counters.bus_verified == 1)
        topic = EVENTS.replace("north", "south")
        await attacker.publish(BusMessage(topic, event(1).payload, STRUCTURED))
        await far.publish(BusMessage(topic, event(2).payload, STRUCTURED))
        await wait_until(lambda: len(heard.messages) == 1)
        assert heard.payloads == [event(2).payload]
        assert receiver.counters.bus_forged == 1

    play(scene)


def test_one_message_that_cannot_be_signed_spoils_no_other() -> None:
    async def scene(stage: Stage) -> None:
        sender, receiver, heard = await stage.node("a"), await stage.node("b"), HandlerLog()
        await receiver.subscribe(EVENTS, heard)
        outcomes = await asyncio.gather(
            sender.publish(event(1)),
            sender.publish(BusMessage(EVENTS, b"no object", STRUCTURED)),
            sender.publish(event(2)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), Malformed, type(None)]
        await wait_until(lambda: heard.messages == [event(1), event(2)])

    play(scene)


def test_what_is_for_another_node_is_passed_over_unverified() -> None:
    async def scene(stage: Stage) -> None:
        sender, receiver, heard = await stage.node("a"), await stage.node("b"), HandlerLog()
        wants = Gate(lambda topic: topic, lambda *_: True, heard, wants=lambda topic: "/D-17/" in topic)
        await receiver.subscribe(f"{ROOT}/agents/+/+/commands", wants)
        for agent in ("D-16", "D-17", "D-18"):
            await sender.publish(BusMessage(f"{ROOT}/agents/Drone/{agent}/commands", event(1).payload, STRUCTURED))
        await wait_until(lambda: len(heard.messages) == 1)
        await asyncio.sleep(1)
        assert [message.topic for message in heard.messages] == [f"{ROOT}/agents/Drone/D-17/commands"]
        assert receiver.counters.bus_verified == 1

    play(scene)
