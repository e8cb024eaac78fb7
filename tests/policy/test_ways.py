"""Whichever way an input comes, it passes the policy, and the policy knows the sender as far as the node does."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.testing.bus_rig import wait_until
from tests.policy.drones import KEYS, SIGNER, Drone, StartMission, WeatherTold, policy_bytes, put_policy

WAIT_S = 240.0
OPEN = """package stigmergy

import rego.v1

default allow := false

allow if input.sender.how in {hows}

reason := json.marshal(input.sender)
"""


class Warn(st.Command):
    wind: float
    to: str


class Called(st.Event):
    wind: float
    to: str


class Pilot(st.Agent):
    @st.decide
    def warn(self, command: Warn) -> st.Events:
        yield Called(wind=command.wind, to=command.to)

    @st.react
    def tell(self, event: Called) -> st.Effects:
        yield st.Tell(event.to, WeatherTold(wind=event.wind))


class Listening(Drone):
    wind: float = 0.0
    heard: int = 0

    @st.evolve
    def told(self, event: WeatherTold) -> None:
        self.wind, self.heard = event.wind, self.heard + 1


class Watcher(Pilot):
    pass


def listening(shards: int = 1) -> st.Fleet:
    return st.Fleet("delivery", agents=[Listening, Watcher], shards=shards)


def rego(*hows: str) -> str:
    return OPEN.replace("{hows}", json.dumps(list(hows)))


def options(folder: Path, text: str) -> dict[str, Any]:
    put_policy(folder / "policy", 1, policy_bytes(1, text))
    return {"policy": f"folder:{folder}/policy", "policy_keys": KEYS}


def reason_of(answer: object) -> dict[str, str]:
    assert isinstance(answer, st.Refused), answer
    found: dict[str, str] = json.loads(answer.reason.partition("delivery 1: ")[2])
    return found


async def test_a_program_is_asked_about_as_a_program(tmp_path: Path) -> None:
    async with listening().running(journal="memory:", **options(tmp_path, rego("http"))) as live:
        sender = reason_of(await live.send("Listening/a", StartMission(mission="M1")))
        assert (sender["how"], sender["token"]) == ("program", "")


async def test_a_command_over_the_bus_is_asked_about_at_the_node_that_decides(tmp_path: Path) -> None:
    bus = f"memory:{tmp_path.name}"
    fleet = listening()
    async with (
        fleet.running(
            journal="memory:", bus=bus, node="b", agents=["Listening/b"], **options(tmp_path, rego("program"))
        ) as there,
        fleet.running(journal="memory:", bus=bus, node="a", agents=["Listening/a"]) as here,
    ):
        await wait_until(lambda: len(here.members()) == len(there.members()) == 2, WAIT_S)
        sender = reason_of(await here.send("Listening/b", StartMission(mission="M1"), within_s=WAIT_S))
        assert (sender["how"], sender["node"]) == ("bus", "local/a")
        assert await there.send("Listening/b", StartMission(mission="M1"))
        # The node that only sends it on has no policy, and need not.
        assert await here.send("Listening/a", StartMission(mission="M1"))


async def test_tells_of_another_fleet_pass_the_policy_and_those_of_the_own_do_not_need_to(tmp_path: Path) -> None:
    bus = f"memory:{tmp_path.name}"
    text = (
        rego("program") + '\nallow if {\n\tinput.kind == "tell"\n\tinput.fields.wind < 10\n\tinput.state.heard < 2\n}\n'
    )
    ground = st.Fleet("ground", agents=[Pilot])
    async with (
        listening().running(journal="memory:", bus=bus, node="d", **options(tmp_path, text)) as drones,
        ground.running(journal="memory:", bus=bus, node="g") as g,
    ):
        for wind in (5.0, 25.0, 6.0, 7.0):
            await g.send("Pilot/p", Warn(wind=wind, to="delivery/Listening/a"))
        await wait_until(lambda: len(drones.dead_letters()) == 2, WAIT_S)
        assert drones.query("Listening/a", Listening).wind == 6.0
        assert [letter.error.partition(" {")[0] for letter in drones.dead_letters()] == [
            "PolicyDenied: denied by policy delivery 1:"
        ] * 2
        await wait_until(lambda: g.standing().owed == 0, WAIT_S)
        # Of the own fleet any wind is believed.
        await drones.send("Watcher/w", Warn(wind=99.0, to="Listening/a"))
        await wait_until(lambda: drones.query("Listening/a", Listening).wind == 99.0, WAIT_S)


async def test_enrolments_pass_the_policy(tmp_path: Path) -> None:
    async with listening().running(journal="memory:", **options(tmp_path, rego("http"))) as live:
        live.enroll_signer(SIGNER.algorithm, SIGNER.public_key)
        assert not await live.send("Listening/a", StartMission(mission="M1"))
        await wait_until(lambda: live.standing().events > 0, WAIT_S)
        assert live.standing().events == 1  # that the node's own key may sign


class Fill(st.Command):
    litres: float


class Filled(st.Event):
    litres: float


class Tank(st.Agent):
    level: float = 0.0

    @st.decide
    def fill(self, command: Fill) -> st.Events:
        yield Filled(litres=command.litres)

    @st.evolve
    def filled(self, event: Filled) -> None:
        self.level = self.level + event.litres


TANKS = """package stigmergy

import rego.v1

default allow := false

allow if {
	input.message == "Fill"
	input.state.level + input.fields.litres <= 10
}

reason := sprintf("%v of 10 are in it", [input.state.level])
"""


async def test_commands_of_compiled_agents_pass_the_policy_with_their_state(tmp_path: Path) -> None:
    fleet = st.Fleet("delivery", agents=[Tank], compiled=True)
    async with fleet.running(journal="memory:", **options(tmp_path, TANKS)) as live:
        answers = [await live.send("Tank/a", Fill(litres=4.0)) for _ in range(3)]
        assert [bool(one) for one in answers] == [True, True, False]
        assert answers[2] == st.Refused("denied by policy delivery 1: 8 of 10 are in it")
        assert live.query("Tank/a", Tank).level == 8.0
        # A batch at once: each is asked about with the state that the one before has left.
        several = await asyncio.gather(*(live.send("Tank/b", Fill(litres=4.0)) for _ in range(3)))
        assert sorted(bool(one) for one in several) == [False, True, True]
        with pytest.raises(st.StigmergyError, match="denied by policy delivery 1"):
            await live.enroll("Tank", ["c"])
