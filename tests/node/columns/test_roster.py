"""Rosters over the control endpoint: of one process, of several put together, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from stigmergy.base.errors import Malformed, NotOwned, StigmergyError, TooLarge, UnknownKind
from stigmergy.control.live import Live
from stigmergy.control.protocol import (
    ControlEndpoint,
    EnrollAgentsRequest,
    Request,
    RosterRequest,
    read_request,
    read_single,
    single,
    write_reply,
    write_request,
)
from stigmergy.control.router import ControlRouter
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.node.column_roster import ENROLLED_NAMES_MAX, Roster, read_roster
from stigmergy.shard.homes import Homes
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.agents.meters import Counted
from tests.node.columns.stage import Hand, Radio, declare, play

NAMES = [f"m-{number}" for number in range(30)]
SHARDS = 5
OWNERS = 2
"""Shards of a fleet, each with an owner of its own."""


def service_of(live: Live) -> ControlService:
    return ControlService(live, Ed25519Verifier(), NodeDescription("1", "memory:", (1, bytes(32))), lambda: None)


async def ask(desk: ControlService | ControlRouter, **request: Any) -> Any:
    line = json.dumps({"v": 1, **request}).encode()
    if isinstance(desk, ControlRouter):
        answers: Any = await desk.answer(read_request(line))
        return next(answers).ok
    kind = RosterRequest(kind="") if request["do"] == "roster" else EnrollAgentsRequest(kind="", names=[])
    return read_single(next(await ControlEndpoint(desk).answer(line)), kind)


def test_what_is_told_over_the_endpoint_is_what_the_node_knows() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        desk = service_of(live)
        assert read_roster(await ask(desk, do="roster", kind="Meter")) == live.roster("Meter")
        found = read_roster(await ask(desk, do="enroll_agents", kind="Meter", names=NAMES), NAMES)
        assert found == await live.enroll("Meter", NAMES)
        assert "Meter/m-7" in live.agents("Meter"), "it was answered when it was durable"

    play(declare(Hand(), shards=SHARDS), scene)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"do": "roster", "kind": "Board"}, UnknownKind),
        ({"do": "enroll_agents", "kind": "Board", "names": ["a"]}, UnknownKind),
        ({"do": "enroll_agents", "kind": "Meter", "names": ["x"] * (ENROLLED_NAMES_MAX + 1)}, TooLarge),
        ({"do": "enroll_agents", "kind": "Meter", "names": "a"}, Malformed),
        ({"do": "enroll_agents", "kind": "Meter", "names": [1]}, Malformed),
        ({"do": "enroll_agents", "kind": "Meter", "names": ["a/b c"]}, StigmergyError),
        ({"do": "roster"}, Malformed),
    ],
)
def test_what_cannot_be_told_is_said(request_: dict[str, Any], error: type[Exception]) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        with pytest.raises(error):
            await ask(service_of(live), **request_)
        assert live.agents("Meter") == []

    play(declare(Hand()), scene)


class Branch:
    """A process of the node, without a socket in between."""

    def __init__(self, desk: ControlService) -> None:
        self._desk = desk
        self.asked: list[str] = []

    async def ask(self, request: Request[Any]) -> AsyncIterator[bytes]:
        line = write_request(request)
        self.asked.append(json.loads(line)["do"])
        lines: Any = await ControlEndpoint(self._desk).answer(line)
        for one in lines:
            yield one


def test_several_processes_enrol_each_their_own_and_are_one_roster() -> None:
    world = Run(1)

    async def main() -> None:
        nodes = []
        for process in (1, 2):
            nodes.append(
                SimNode(
                    world,
                    lambda _: declare(Hand(), shards=OWNERS),
                    name=f"p{process}",
                    part=(process - 1, process - 1),
                )
            )
        lives = [await node.start() for node in nodes]
        branches = [Branch(service_of(live)) for live in lives]
        board = ControlRouter("f", "memory:", Homes(OWNERS), branches)
        empty = read_roster(await ask(board, do="roster", kind="Meter"))
        assert [one.agents for one in empty.shards] == [0] * OWNERS
        described = await ask(board, do="enroll_agents", kind="Meter", names=NAMES)
        assert described.processes == 2
        roster = read_roster(described, NAMES)
        check(roster, lives)
        # One name: only its process enrols, the other says what it has.
        for branch in branches:
            branch.asked.clear()
        await ask(board, do="enroll_agents", kind="Meter", names=["one"])
        assert sorted(branch.asked[0] for branch in branches) == ["enroll_agents", "roster"]
        with pytest.raises(TooLarge):
            await ask(board, do="enroll_agents", kind="Meter", names=["x"] * (ENROLLED_NAMES_MAX + 1))
        # What one process alone says is no roster of the node; and a batch for the other's shard is refused.
        with pytest.raises(Malformed, match="ask the node itself, and not one of its processes"):
            read_roster(await ask(service_of(lives[1]), do="roster", kind="Meter"))
        shard = next(place.shard for place in roster.places if place.shard == 1)
        mine = [name for name, place in zip(NAMES, roster.places, strict=True) if place.shard == shard]
        batch = Radio(lives[1]).batch((mine[0], Counted(by=1)), shard=shard)
        with pytest.raises(NotOwned):
            await lives[0].deliver(batch)
        await lives[1].deliver(batch)
        assert lives[1].query(f"Meter/{mine[0]}").total == 1
        for node in nodes:
            await node.stop()

    def check(roster: Roster, lives: list[Live]) -> None:
        assert sum(one.agents for one in roster.shards) == len(NAMES)
        for name, place in zip(NAMES, roster.places, strict=True):
            live = lives[0] if place.shard == 0 else lives[1]
            table = live.host.shards[place.shard].state.tables["Meter"]
            assert table.name(place.number) == name
            generation = roster.shards[place.shard].generation
            assert table.check_of(generation) == (
                roster.shards[place.shard].agents,
                roster.shards[place.shard].check,
            )

    world.run(main())


@pytest.mark.parametrize(
    "spoil",
    [
        {"layout": "???"},
        {"layout": "AAAA"},
        {"shards": [{}]},
        {"shards": 7},
        {"places": [[1]]},
        {"kind": None, "shards": None},
    ],
)
def test_what_is_no_roster_is_refused(spoil: dict[str, Any]) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        found = await ask(service_of(live), do="roster", kind="Meter")
        line = write_reply(single({**msgspec.to_builtins(found), **spoil}))
        with pytest.raises(Malformed):
            read_roster(read_single(line, RosterRequest(kind="Meter")))
        await asyncio.sleep(0)

    play(declare(Hand()), scene)
