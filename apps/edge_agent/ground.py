"""The ground station: a pilot for each drone. It gives orders, hears what became of them, and counts what it is told.

    stigmergy run apps.edge_agent.ground:fleet --bus mqtt://gateway:1883
    stigmergy send Pilot/D-17 Watch
    stigmergy send Pilot/D-17 Launch mission=M1 distance_m=60

It is a fleet of its own, with its own journal: what a drone publishes arrives here once and in order, whatever breaks
in between. Orders go out as commands on the drone's topic, with an id, so that a repetition changes nothing.
"""

from __future__ import annotations

from apps.edge_agent.messages import (
    SITE,
    BatteryReported,
    Delivered,
    GroundHeard,
    Landed,
    MissionStarted,
    PositionReported,
    ReturnBegun,
)
from stigmergy import (
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Publish,
    WakeMe,
    Woken,
    decide,
    evolve,
    react,
    reject,
)

HELLO_S = 0.5
HELLO = "hello"
DRONES = f"delivery/{SITE}/agents/Drone/{{id}}"


class Watch(Command):
    """Begin to look after the drone: say hello to it, again and again."""


class Launch(Command):
    """Send the drone on a mission."""

    mission: str
    distance_m: float


class Recall(Command):
    """Have the drone come back."""

    reason: str


class RepeatOrder(Command):
    """Send the last launch once more, with the same id, as somebody does who got no answer."""


class WatchBegun(Event):
    """The pilot looks after its drone."""


class LaunchOrdered(Event, category="control"):
    """The drone is to fly."""

    order: str
    mission: str
    distance_m: float


class RecallOrdered(Event, category="control"):
    """The drone is to come back."""

    order: str
    reason: str


class OrderAnswered(Event):
    """What the drone answered."""

    order: str
    accepted: bool
    reason: str | None = None


class Pilot(Agent):
    """Who looks after one drone, known by the drone's name."""

    watching: bool = False
    orders: int = 0
    launched: LaunchOrdered | None = None
    accepted: bool | None = None
    refused_because: str | None = None
    answers: int = 0
    battery: float | None = None
    distance_m: float = 0.0
    reports: int = 0
    doing: str = "not heard of yet"
    deliveries: int = 0

    @decide
    def watch(self, command: Watch) -> Events:
        if self.watching:
            reject("watching already")
        yield WatchBegun()

    @decide
    def launch(self, command: Launch) -> Events:
        order = f"{self.id}.{self.orders + 1}"
        yield LaunchOrdered(order=order, mission=command.mission, distance_m=command.distance_m)

    @decide
    def repeat(self, command: RepeatOrder) -> Events:
        if self.launched is None:
            reject("no launch was ordered yet")
        yield self.launched

    @decide
    def recall(self, command: Recall) -> Events:
        yield RecallOrdered(order=f"{self.id}.{self.orders + 1}", reason=command.reason)

    @evolve
    def watches(self, event: WatchBegun) -> None:
        self.watching = True

    @evolve
    def ordered(self, event: LaunchOrdered) -> None:
        if self.launched is None or self.launched.order != event.order:
            self.orders += 1
        self.launched = event

    @evolve
    def recalled(self, event: RecallOrdered) -> None:
        self.orders += 1

    @evolve
    def answered(self, event: OrderAnswered) -> None:
        self.answers += 1
        self.accepted = event.accepted
        self.refused_because = event.reason

    @react
    def begin_to_say_hello(self, event: WatchBegun) -> Effects:
        yield WakeMe(name=HELLO, after_s=HELLO_S)

    @react
    def say_hello(self, event: Woken) -> Effects:
        yield Publish(topic="hello", event=GroundHeard())
        yield WakeMe(name=HELLO, after_s=HELLO_S)

    @react
    def send_launch(self, event: LaunchOrdered) -> Effects:
        yield Publish(topic="launch", event=event)

    @react
    def send_recall(self, event: RecallOrdered) -> Effects:
        yield Publish(topic="recall", event=event)

    # What the drone says.

    @evolve
    def battery_told(self, event: BatteryReported) -> None:
        self.battery = event.percent
        self.reports += 1

    @evolve
    def position_told(self, event: PositionReported) -> None:
        self.distance_m = event.distance_m
        self.reports += 1

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.reports += 1
        self.doing = f"flies {event.mission}, {event.distance_m:g} m out"

    @evolve
    def delivered(self, event: Delivered) -> None:
        self.reports += 1
        self.deliveries += 1
        self.doing = f"has delivered {event.mission}, comes home"

    @evolve
    def returns(self, event: ReturnBegun) -> None:
        self.reports += 1
        self.doing = f"comes home from {event.mission}: {event.because}"

    @evolve
    def landed(self, event: Landed) -> None:
        self.reports += 1
        self.doing = f"stands {event.at_m:g} m out: {event.because}"


fleet = Fleet("ground", agents=[Pilot])
fleet.listen("Drone/{id}/battery", to="Pilot/{id}", fleet="delivery")
fleet.listen("Drone/{id}/position", to="Pilot/{id}", fleet="delivery")
fleet.listen("Drone/{id}/mission", to="Pilot/{id}", fleet="delivery")
# Commands for the agents of another fleet: what a pilot publishes becomes a CloudEvent on the drone's topic.
for topic, command, fields in (
    ("launch", "StartMission", {"mission": "data.mission", "distance_m": "data.distance_m"}),
    ("recall", "AbortMission", {"reason": "data.reason"}),
):
    fleet.device_hears(
        f"Pilot/{{id}}/{topic}",
        topic=f"{DRONES}/commands",
        fields={"order": "id", **fields},
        constants={"specversion": "1.0", "type": command, "source": "/ground/pilot"},
    )
fleet.device(
    f"{DRONES}/answers",
    to="Pilot/{id}",
    event=OrderAnswered,
    fields={"order": "data.command", "accepted": "data.accepted", "reason": "data.reason"},
)
