"""MAVLink vehicles: readings from PX4, ArduPilot and similar autopilots, and commands to them.

    vehicle = fleet.attach(Vehicle("udpin://0.0.0.0:14540"))

The protocol is implemented here, in a few small files, and not through pymavlink (107 MB on a device, blocking, LGPL)
or MAVSDK (21 MB of native code with its own threads). The tests compare our bytes with those of pymavlink.
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
