"""MAVLink vehicles: what PX4, ArduPilot and their kin say about themselves, and how they are told what to do.

    vehicle = fleet.attach(Vehicle("udpin://0.0.0.0:14540"))

The protocol is spoken here, in a few small files, and not through pymavlink (107 MB on a device, blocking, LGPL) or
MAVSDK (21 MB of native code with threads of its own). The tests hold our bytes against those of pymavlink.
"""

from stigmergy.devices.mavlink.messages import Autopilot, Landed, MavResult
from stigmergy.devices.mavlink.setup import (
    Arm,
    BatteryRead,
    Disarm,
    GoTo,
    Land,
    PositionRead,
    ReturnHome,
    StatusRead,
    TakeOff,
    fit,
)
from stigmergy.devices.mavlink.vehicle import Battery, Position, Status, Vehicle

__all__ = [
    "Arm",
    "Autopilot",
    "Battery",
    "BatteryRead",
    "Disarm",
    "GoTo",
    "Land",
    "Landed",
    "MavResult",
    "Position",
    "PositionRead",
    "ReturnHome",
    "Status",
    "StatusRead",
    "TakeOff",
    "Vehicle",
    "fit",
]
