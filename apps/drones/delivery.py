"""How a parcel is delivered: a workflow of commands to one drone, undone if a step fails.

    Delivery:  TakeOff, ToPickup, Collect, ToDrop, Deposit, ToHome, Park
    Leg:       AskWay, PlanRoute, FlyRoute; a closed zone in the way sends it back to AskWay

Both run where the drone does, so a lost link stops neither. The route is planned at the gateway, which has the better
planner, and on board if the gateway does not answer. A failed step is compensated: a collected parcel is brought back,
and a drone that took off goes home and lands. The seeds call that a mission rollback.
"""

from __future__ import annotations

from typing import Any

from apps.drones.messages import (
    Airborne,
    AskWay,
    BringBack,
    Collect,
    Collected,
    Deliver,
    Deposit,
    Deposited,
    FlightAborted,
    FlyLeg,
    FlyRoute,
    GoHome,
    JobEnded,
    Park,
    Parked,
    PlanRoute,
    RouteBlocked,
    RouteFlown,
    RoutePlanned,
    TakeOff,
    WayAsked,
)
from stigmergy import Step, Workflow

PLAN_S = 6.0
"""How long the gateway may take before the drone plans itself."""
LEG_S_MAX = 1800.0
ROUTES_MAX = 8
"""How often a leg is planned again because a zone was closed."""


def leg_to(place: str) -> Any:
    """Makes the command of a leg to one of the places of the job."""

    def make(run: Any) -> FlyLeg:
        job = run.last(Deliver)
        return FlyLeg(drone=job.drone, to=getattr(job, place))

    return make


leg = Workflow(
    "Leg",
    FlyLeg,
    Step(AskWay, done=WayAsked, within_s=30),
    Step(PlanRoute, done=RoutePlanned, at=("gateway", "here"), within_s=PLAN_S),
    Step(
        FlyRoute,
        done=RouteFlown,
        again_from=AskWay,
        on=RouteBlocked,
        tries=ROUTES_MAX,
        retry_s=0.0,  # a drone that has given up refuses each further try at once
        within_s=LEG_S_MAX,
        fails=FlightAborted,
    ),
    to="Drone/{drone}",
)

delivery = Workflow(
    "Delivery",
    Deliver,
    Step(TakeOff, done=Airborne, undo=GoHome, undone=JobEnded, within_s=300, fails=FlightAborted),
    Step(leg, name="ToPickup", make=leg_to("pickup"), within_s=LEG_S_MAX),
    Step(Collect, done=Collected, undo=BringBack, within_s=600, fails=FlightAborted),
    Step(leg, name="ToDrop", make=leg_to("drop"), within_s=LEG_S_MAX),
    Step(Deposit, done=Deposited, within_s=600, fails=FlightAborted),
    Step(leg, name="ToHome", make=leg_to("home"), within_s=LEG_S_MAX),
    Step(Park, done=Parked, within_s=300, fails=FlightAborted),
    to="Drone/{drone}",
)
