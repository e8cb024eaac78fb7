"""Somebody with nothing but a connection to the broker, against two nodes: in memory, on Mosquitto and on NATS."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stigmergy
from stigmergy import Accepted, Agent, Command, Effects, Event, Events, Fleet, Publish, Settings, decide, evolve, react
from stigmergy.app.fleet import Running
from stigmergy.app.keyring import make_private_key
from stigmergy.app.node_config import NodeConfig, open_bus
from stigmergy.app.signing import KnownNodes
from stigmergy.base.errors import ConfigError, StigmergyError, TrustError
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.signatures import ATTRIBUTE, Identity, sign_batch, without_proof
from stigmergy.control.live import Live
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.keys.keyfile import encode_public_key, read_private_key
from stigmergy.network.bus_keys import KeptNode
from stigmergy.node.settings import BusSettings

WAIT_S_MAX = 120.0
"""Only what is broken takes so long."""
ROOT = "plant/local"
READINGS = f"{ROOT}/agents/Meter/m1/events/reading"


class Read(Command):
    value: int


class Reading(Event):
    value: int


class Meter(Agent):
    @decide
    def read(self, command: Read) -> Events:
        yield Reading(value=command.value)

    @react
    def tell(self, event: Reading) -> Effects:
        yield Publish("reading", event)


class Board(Agent):
    values: tuple[int, ...] = ()

    @evolve
    def heard(self, event: Reading) -> None:
        self.values = (*self.values, event.value)


def plant() -> Fleet:
    fleet = Fleet("plant", agents=[Meter, Board], shards=2)
    fleet.listen("Meter/{id}/reading", to="Board/main")
    return fleet


def running(folder: Path, url: str, name: str, agents: list[str], **options: Any) -> Running:
    options.setdefault("journal", f"sqlite:{folder / name}.db")
    options.setdefault("settings", Settings(bus=BusSettings(signatures="sign")))
    return plant().running(bus=url, node=name, agents=agents, **options)


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not reached():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.02)


class Attacker:
    """A program with a connection: hears everything, and publishes what it likes, bytes as they are."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.heard: list[BusMessage] = []

    async def hear(self, message: BusMessage) -> None:
        self.heard.append(message)

    async def send(self, message: BusMessage) -> None:
        await self.bus.publish(message)

    async def catch(self, is_wanted: Callable[[BusMessage], bool]) -> BusMessage:
        """A message of a node, as it was on the wire."""
        await until(lambda: any(is_wanted(one) for one in self.heard))
        return next(one for one in reversed(self.heard) if is_wanted(one))


@asynccontextmanager
async def attacking(url: str) -> AsyncIterator[Attacker]:
    bus = open_bus(NodeConfig(bus=url, site="local", node="attacker"), "plant", SystemEntropy())
    assert bus is not None
    attacker = Attacker(bus)
    for pattern in (f"{ROOT}/agents/+/+/events/#", f"{ROOT}/nodes/+/presence"):
        await bus.subscribe(pattern, attacker.hear)
    await bus.open()
    await until(lambda: bus.is_up)
    try:
        yield attacker
    finally:
        await bus.close()


def values(live: Live) -> tuple[int, ...]:
    return live.query("Board/main", Board).values


def forged(live: Live) -> int:
    return int(live.standing().counters["bus_forged"])


def has_refused(live: Live, count: int) -> bool:
    return forged(live) >= count


def refusals(live: Live) -> str:
    return " ".join(one for one in live.standing().troubles if " refused, the last one on " in one)


def edited(message: BusMessage, **attributes: Any) -> BusMessage:
    """The message with other attributes; its signature stays."""
    document = json.loads(message.payload)
    data = {**document, **attributes}
    signature = data.pop(ATTRIBUTE, None)
    data |= {} if signature is None else {ATTRIBUTE: signature}
    return BusMessage(message.topic, json.dumps(data, separators=(",", ":")).encode(), message.content_type)


Scene = Callable[[Live, Live, Attacker], Awaitable[None]]


async def on_two_nodes(folder: Path, url: str, scene: Scene) -> None:
    async with (
        running(folder, url, "b", ["Board/*"]) as board,
        running(folder, url, "a", ["Meter/*"]) as meter,
        attacking(url) as attacker,
    ):
        await until(lambda: board.standing().link.members == 2)
        await meter.send("Meter/m1", Read(value=1))
        await until(lambda: values(board) == (1,))
        await scene(board, meter, attacker)


async def test_nothing_of_a_program_with_only_a_connection_is_taken(bus_url: str, tmp_path: Path) -> None:
    """Forged numbers, another topic, another fleet, stripped and changed signatures: refused, counted and told, and
    what the agent itself publishes goes on to arrive."""

    async def scene(board: Live, meter: Live, attacker: Attacker) -> None:
        real = await attacker.catch(lambda one: one.topic == READINGS)
        assert ATTRIBUTE in json.loads(real.payload)
        plain = without_proof(real)
        far_ahead = edited(plain, sequence="1000000", id="9.0.1000000.0", previous=None)
        stranger = Identity(f"{ROOT}/stranger", Ed25519Signer(b"x" * 32))
        as_a = Identity(f"{ROOT}/a", Ed25519Signer(b"x" * 32))
        other = f"{ROOT}/agents/Meter/m2/events/reading"
        attacks = [
            far_ahead,
            plain,  # what was said, without its signature: the same bytes may be anybody's
            edited(real, sequence="1000000"),
            BusMessage(other, real.payload, real.content_type),
            *sign_batch([far_ahead], stranger),
            *sign_batch([far_ahead], as_a),
            BusMessage(f"{ROOT}/nodes/a/presence", b'{"specversion":"1.0"}', real.content_type),
            BusMessage(f"{ROOT}/mesh/ask:b/a", b"\x01"),
        ]
        for number, attack in enumerate(attacks, start=1):
            await attacker.send(attack)
            await until(partial(has_refused, board, number))
        await meter.send("Meter/m1", Read(value=2))
        await until(lambda: values(board) == (1, 2))
        await attacker.send(real)  # again on its own topic: a repetition, which the marks drop
        await meter.send("Meter/m1", Read(value=3))
        await until(lambda: values(board) == (1, 2, 3))
        assert forged(board) == len(attacks)
        told = refusals(board)
        assert "plant/local/a" in told
        assert "plant/local/stranger" in told
        assert attacker_link(bus_url) in told
        assert f"key {Ed25519Signer(b'x' * 32).public_key.hex()[:16]}" in told

    await on_two_nodes(tmp_path, bus_url, scene)


def attacker_link(url: str) -> str:
    return url.partition("@")[2] or url.partition("?")[0]


async def test_what_is_held_for_a_node_that_is_away_is_verified_before_anybody_is_heard(
    bus_url: str, tmp_path: Path
) -> None:
    """The broker delivers what it has held as soon as the link is up, before the announcements of others."""
    async with running(tmp_path, bus_url, "a", ["Meter/*"]) as meter, attacking(bus_url) as attacker:
        async with running(tmp_path, bus_url, "b", ["Board/*"]) as board:
            await until(lambda: board.standing().link.members == 2)
            await meter.send("Meter/m1", Read(value=1))
            await until(lambda: values(board) == (1,))
        real = await attacker.catch(lambda one: one.topic == READINGS)
        await attacker.send(edited(without_proof(real), sequence="1000000", id="9", previous=None))
        await meter.send("Meter/m1", Read(value=2))
        async with running(tmp_path, bus_url, "b", ["Board/*"]) as board:
            await until(lambda: forged(board) == 1)
            await until(lambda: values(board) == (1, 2))


async def test_a_node_with_a_valid_key_cannot_speak_for_agents_of_another(bus_url: str, tmp_path: Path) -> None:
    async with running(tmp_path, bus_url, "c", ["Meter/c*"]) as third:
        key = read_signer(tmp_path / "c.key")

        async def scene(board: Live, meter: Live, attacker: Attacker) -> None:
            real = await attacker.catch(lambda one: one.topic == READINGS)
            ahead = edited(without_proof(real), sequence="1000000", id="9", previous=None)
            (message,) = sign_batch([ahead], Identity(f"{ROOT}/c", key))
            await until(lambda: board.standing().link.members == 3)
            await attacker.send(message)
            await until(lambda: forged(board) == 1)
            assert "plant/local/c does not run Meter/m1" in refusals(board) or "runs Meter/m1" in refusals(board)
            await meter.send("Meter/m1", Read(value=2))
            await until(lambda: values(board) == (1, 2))

        async with (
            running(tmp_path, bus_url, "b", ["Board/*"]) as board,
            running(tmp_path, bus_url, "a", ["Meter/m*"]) as meter,
            attacking(bus_url) as attacker,
        ):
            await until(lambda: board.standing().link.members == 3)
            await meter.send("Meter/m1", Read(value=1))
            await until(lambda: values(board) == (1,))
            await scene(board, meter, attacker)
        assert third.failure is None


def read_signer(path: Path) -> Ed25519Signer:
    from stigmergy.app.keyring import load_signer

    signer = load_signer(path, create=False)
    assert isinstance(signer, Ed25519Signer)
    return signer


async def test_a_node_that_lost_its_key_is_refused_until_its_new_one_is_written_down(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    known = tmp_path / "b.db-known"

    async def play(name: str, value: int) -> None:
        journal = f"sqlite:{tmp_path / name}"
        async with running(tmp_path, url, "a", ["Meter/*"], journal=journal, take_over=True) as meter:
            await meter.send("Meter/m1", Read(value=value))

    async with running(tmp_path, url, "b", ["Board/*"]) as board:
        await play("a.db", 1)
        await until(lambda: values(board) == (1,))
        await play("new.db", 2)
        await until(lambda: "known here with another key" in refusals(board))
        assert values(board) == (1,)
    new_key = read_private_key(tmp_path / "new.key").public
    lines = [json.loads(line) for line in known.read_text().splitlines()]
    written = [line | {"key": encode_public_key(new_key)} if line["name"] == f"{ROOT}/a" else line for line in lines]
    known.write_text("".join(f"{json.dumps(line)}\n" for line in written))
    # What was refused is a gap in the numbers, which is waited for.
    soon = Settings(bus=BusSettings(gap_wait_s=1.0, signatures="sign"))
    async with (
        running(tmp_path, url, "b", ["Board/*"], settings=soon) as board,
        running(tmp_path, url, "a", ["Meter/*"], journal=f"sqlite:{tmp_path / 'new.db'}") as meter,
    ):
        await meter.send("Meter/m1", Read(value=3))
        await until(lambda: 3 in values(board))


async def test_require_takes_only_what_listed_keys_have_signed(bus_url: str, tmp_path: Path) -> None:
    (tmp_path / "op").mkdir()
    operator = tmp_path / "op" / "op.key"
    make_private_key(operator)
    peer = make_private_key(tmp_path / "b.key").public
    strict = Settings(bus=BusSettings(signatures="require", client_keys=(str(operator),)))
    with pytest.raises(ConfigError, match="needs to know whose"):
        async with running(tmp_path, bus_url, "a", ["Meter/*"], settings=strict):
            pass
    options: dict[str, Any] = {"settings": strict, "peers": [peer.key.hex()]}
    async with running(tmp_path, bus_url, "a", ["Meter/*"], **options) as meter:
        async with stigmergy.connect(bus_url, fleet="plant", key=operator, within_s=WAIT_S_MAX) as far:
            answer = await far.send("Meter/m1", Read(value=1))
            assert isinstance(answer, Accepted)
        before = forged(meter)
        async with stigmergy.connect(bus_url, fleet="plant") as far:
            with pytest.raises(StigmergyError, match="requires signatures"):
                await far.send("Meter/m1", Read(value=2), within_s=WAIT_S_MAX)
        assert forged(meter) > before
        assert meter.standing().counters["bus_commands"] == 1


async def test_nodes_that_do_not_sign_are_heard_until_they_do(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    off = Settings(bus=BusSettings(signatures="off"))
    async with running(tmp_path, url, "b", ["Board/*"]) as board:
        async with running(tmp_path, url, "a", ["Meter/*"], settings=off) as meter:
            await meter.send("Meter/m1", Read(value=1))
            await until(lambda: values(board) == (1,))
        assert forged(board) == 0
        async with running(tmp_path, url, "a", ["Meter/*"]) as meter:
            await meter.send("Meter/m1", Read(value=2))
            await until(lambda: values(board) == (1, 2))
        async with running(tmp_path, url, "a", ["Meter/*"], settings=off) as meter:
            await meter.send("Meter/m1", Read(value=3))
            await until(lambda: "not signed, and plant/local/a" in refusals(board))
        assert values(board) == (1, 2)


def test_the_file_of_known_nodes_is_read_strictly_but_for_a_cut_last_line(tmp_path: Path) -> None:
    path = tmp_path / "b.db-known"
    key = "ab" * 32
    path.write_text(f'{{"name":"f/s/a","key":"{key}"}}\n{{"name":"f/s/c","ke')
    file = KnownNodes(path)
    assert [*file.nodes] == ["f/s/a"]
    file.add(KeptNode("f/s/d", key))
    assert [*KnownNodes(path).nodes] == ["f/s/a", "f/s/d"]
    path.write_text('{"name":"f/s/a","key":"nonsense"}\n' + path.read_text())
    with pytest.raises(TrustError, match="line 1"):
        KnownNodes(path)


def test_the_settings_say_what_they_take() -> None:
    with pytest.raises(ConfigError, match='give "sign", "require" or "off"'):
        BusSettings(signatures="on")
    with pytest.raises(ConfigError, match=r"connect\(signatures"):
        stigmergy.connect("memory:x", fleet="plant", signatures="require")
