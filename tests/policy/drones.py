"""A fleet and its policy, for the tests of policies."""

from pathlib import Path

import stigmergy as st
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.policy.bundle import PolicyRules, write_policy

SIGNER = Ed25519Signer(bytes(range(32)))
OTHER = Ed25519Signer(bytes(range(1, 33)))
KEYS = [SIGNER.public_key.hex()]
REGO = """package stigmergy

import rego.v1

default allow := false

allow if {
	input.message == "StartMission"
	input.state.battery >= 20
	mission := input.fields.mission
	not mission in data.forbidden
}

allow if input.message == "Charge"

allow if {
	input.kind == "enrolment"
	input.sender.how == "program"
}

allow if {
	input.kind == "tell"
	input.sender.fleet == "ground"
	input.message == "WeatherTold"
}

reason := sprintf("battery at %v %%, 20 %% needed", [input.state.battery]) if input.state.battery < 20
"""
DATA = '{"forbidden": ["M13"]}'


class StartMission(st.Command):
    mission: str


class Charge(st.Command):
    percent: float


class Erase(st.Command):
    """No rule allows it."""


class Land(st.Command, safety=True):
    """No rule allows it, and none can stop it."""


class MissionStarted(st.Event):
    mission: str


class Charged(st.Event):
    percent: float


class Erased(st.Event):
    pass


class Landed(st.Event):
    pass


class WeatherTold(st.Event):
    wind: float


class Drone(st.Agent):
    battery: float = 100.0
    missions: int = 0
    landed: int = 0

    @st.decide
    def start(self, command: StartMission) -> st.Events:
        if command.mission == "M99":
            st.reject("no such mission")
        yield MissionStarted(mission=command.mission)

    @st.decide
    def charge(self, command: Charge) -> st.Events:
        yield Charged(percent=command.percent)

    @st.decide
    def erase(self, command: Erase) -> st.Events:
        yield Erased()

    @st.decide
    def land(self, command: Land) -> st.Events:
        yield Landed()

    @st.evolve
    def started(self, event: MissionStarted) -> None:
        self.missions += 1

    @st.evolve
    def charged(self, event: Charged) -> None:
        self.battery = event.percent

    @st.evolve
    def erased(self, event: Erased) -> None:
        self.missions = 0

    @st.evolve
    def landed_(self, event: Landed) -> None:
        self.landed += 1


def drone_fleet(settings: st.Settings | None = None) -> st.Fleet:
    return st.Fleet("delivery", agents=[Drone], settings=settings or st.Settings(policy=st.PolicySettings(look_s=0.05)))


def policy_bytes(
    version: int, rego: str = REGO, signer: Ed25519Signer | None = SIGNER, fleet: str = "delivery", data: str = DATA
) -> bytes:
    return write_policy(PolicyRules(fleet, version, (("drones.rego", rego),), data), signer)


def put_policy(folder: Path, version: int, data: bytes | None = None, *, fleet: str = "delivery") -> Path:
    """Puts a bundle into a folder of policies."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{fleet}-{version}.policy"
    path.write_bytes(policy_bytes(version, fleet=fleet) if data is None else data)
    return path
