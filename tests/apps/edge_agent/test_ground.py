"""What a pilot decides and counts. No disk, no clock, no network."""

from apps.edge_agent.ground import (
    Launch,
    LaunchOrdered,
    OrderAnswered,
    Pilot,
    Recall,
    RecallOrdered,
    RepeatOrder,
    Watch,
    WatchBegun,
)
from apps.edge_agent.messages import (
    BatteryReported,
    Delivered,
    GroundHeard,
    Landed,
    MissionStarted,
    PositionReported,
    ReturnBegun,
)
from stigmergy import Publish, WakeMe
from stigmergy.testing import given

ORDERED = LaunchOrdered(order="D-17.1", mission="M1", distance_m=60)


def test_says_hello_again_and_again() -> None:
    pilot = given(Pilot).when(Watch())
    pilot.then(WatchBegun(), WakeMe(name="hello", after_s=0.5)).when(Watch()).refused("watching already")
    hello = (Publish(topic="hello", event=GroundHeard()), WakeMe(name="hello", after_s=0.5))
    pilot.later(seconds=1.0).then(*hello, *hello)


def test_orders_have_ids_of_their_own() -> None:
    pilot = given(Pilot, id="D-17").when(Launch(mission="M1", distance_m=60))
    pilot.then(ORDERED, Publish(topic="launch", event=ORDERED))
    recalled = RecallOrdered(order="D-17.2", reason="storm")
    pilot.when(Recall(reason="storm")).then(recalled, Publish(topic="recall", event=recalled))


def test_a_repeated_order_has_the_same_id() -> None:
    given(Pilot).when(RepeatOrder()).refused("no launch was ordered yet")
    pilot = given(Pilot, ORDERED, id="D-17").when(RepeatOrder())
    pilot.then(ORDERED, Publish(topic="launch", event=ORDERED)).state(orders=1)


def test_remembers_the_answer() -> None:
    refused = OrderAnswered(order="D-17.1", accepted=False, reason="battery at 12 %")
    given(Pilot, ORDERED, refused).state(accepted=False, refused_because="battery at 12 %", answers=1)


def test_counts_what_it_is_told() -> None:
    given(
        Pilot,
        MissionStarted(mission="M1", distance_m=60),
        BatteryReported(percent=80.0),
        PositionReported(distance_m=55.5),
        Delivered(mission="M1"),
        BatteryReported(percent=79.0),
        ReturnBegun(mission="M1", because="storm"),
        Landed(mission="M1", at_m=0.5, because="storm"),
    ).state(battery=79.0, distance_m=55.5, reports=7, deliveries=1, doing="stands 0.5 m out: storm")
