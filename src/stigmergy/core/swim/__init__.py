"""Membership without a broker, as a machine without I/O: who is there, who is suspected, who is gone (SWIM)."""

from stigmergy.core.swim.identity import Identity
from stigmergy.core.swim.machine import Appeared, Ready, Swim, SwimCounters, Vanished
from stigmergy.core.swim.packets import Status, SwimUpdate
from stigmergy.core.swim.settings import SwimSettings

__all__ = ["Appeared", "Identity", "Ready", "Status", "Swim", "SwimCounters", "SwimSettings", "SwimUpdate", "Vanished"]
