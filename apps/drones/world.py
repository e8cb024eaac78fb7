"""The world: drones that fly, parcels, boxes, pads, what breaks, and a witness that writes down what really happened.

It has no clock, no thread and no task: its owner calls `advance`. It is the same in the simulator, in tests, and behind
a `WorldServer`. Agents reach it as `Controllers`, through their sensors and actuators, and not otherwise.

An order has a key and a token. The key of an order that was carried out, once more, does nothing and succeeds. A token
lower than one that this drone has obeyed is refused (StaleOrder): a newer decision overtook it.

The witness writes two files into its folder, for a checker that knows nothing of the agents:

    world.f4       positions as they are, float32 [tick][drone][x, y, z], little-endian, one tick each TICK_S; the
                   first is that of start_t
    world.jsonl    one Fact a line; the first has start_t, tick_s and the number of drones, then `commissioned` gives
                   each drone's index in world.f4
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from apps.drones.area import Area, Point, cell_of, pad_of, place_of, stand_of, zone_of
from apps.drones.messages import ArmBox, ClosedZone, Fix, Grip, Land, Release, Steer
from apps.drones.parcels import NEAR_M, Fact, Parcels
from apps.drones.physics import FIX_STEPS, STEP_S, Conditions, Happening, Kind, Physics
from stigmergy import Action, DeviceRefused, StaleOrder, Unreachable

TICK_S = FIX_STEPS * STEP_S
HEIGHT_M_MAX = 150.0
KEYS_PER_DRONE = 32
"""So many orders that were carried out are remembered; tokens refuse what is older."""
BOX_KEYS_MAX = 100_000
FACTS_MAX = 1_000_000
"""Facts that are kept in memory; the oldest go. All of them are in the file, if there is one."""
OUT_OF_ORDER_S: dict[Kind, float] = {"motor": math.inf, "radio": 60.0, "computer": 10.0}
"""How long something that broke by itself stays broken."""

Frame = NDArray[np.float32]
Framed = Callable[[float, tuple[str, ...], Frame], None]
"""Is given t, the names of drones, and what their flight controllers say: [drone][physics.FIELDS], NaN if silent."""


class Controllers(Protocol):
    """What sensors and actuators of drones speak to: a World, a RemoteWorld, a MAVLink vehicle."""

    def fix(self, drone: str) -> Fix | None:
        """What its flight controller said last; None if it is silent."""
        ...

    def now_t(self) -> float:
        """The time of the satellites."""
        ...

    async def order(self, drone: str, action: Action, key: str, token: int) -> None:
        """Carries out Steer, Land, Grip or Release. Raises DeviceRefused with a sentence, or Unreachable: try again."""
        ...

    async def arm_box(self, action: ArmBox, key: str) -> None:
        """Tells a customer's box which token it is to take. Raises as `order` does."""
        ...


def fix_of(t: float, row: list[float]) -> Fix | None:
    """A row of a frame as a message; None if the drone is silent."""
    x, y, z, vx, vy, vz, battery, link, down = row
    if x != x:  # noqa: PLR0124 - NaN: nothing was said
        return None
    return Fix(t, x, y, z, vx, vy, vz, battery, link > 0.5, down > 0.5)


class OrderBook:
    """Which orders were carried out: by key, and by the highest token of each drone."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._keys: dict[str, deque[str]] = {}

    def has(self, drone: str, key: str) -> bool:
        """Whether this very order was carried out."""
        return key in self._keys.get(drone, ())

    def check(self, drone: str, key: str, token: int) -> None:
        """Raises StaleOrder if an order with a higher token was carried out."""
        highest = self._tokens.get(drone, token)
        if token < highest:
            raise StaleOrder(f"{drone}: the order {key} has token {token}, and {highest} was carried out")

    def keep(self, drone: str, key: str, token: int) -> None:
        """It was carried out."""
        self._tokens[drone] = token
        self._keys.setdefault(drone, deque(maxlen=KEYS_PER_DRONE)).append(key)


class World:
    """All that is not an agent. Drones stand at home, on their stands, when it begins."""

    def __init__(
        self,
        area: Area,
        drones: Iterable[str],
        seed: int,
        start_t: float = 0.0,
        folder: Path | None = None,
        *,
        conditions: Conditions | None = None,
    ) -> None:
        self.area = area
        self.names = tuple(drones)
        self._index = {name: i for i, name in enumerate(self.names)}
        self._homes = [stand_of(area, zone_of(name), int(name.rpartition("-")[2])) for name in self.names]
        half = area.zone_m / 2
        masts = [(x + half, y + half) for x, y in map(area.corner, area.zones())]
        self.physics = Physics(self.names, self._homes, seed, conditions, masts)
        self._start_t = start_t
        self._witness = _Witness(folder)
        self.facts = self._witness.facts
        self.parcels = Parcels(self._witness.write, self.now_t)
        self._pads: dict[tuple[int, int], tuple[str, Point]] = {}
        self._docked: dict[int, str] = {}
        self._orders = OrderBook()
        self._box_keys: dict[str, None] = {}
        self._repairs: list[tuple[float, int, Kind]] = []
        self._until: dict[tuple[int, Kind], float] = {}
        self._jams: list[tuple[float, str]] = []
        self._each_frame: list[Framed] = []
        self._say("world", seed=seed, drones=len(self.names), tick_s=TICK_S)
        for i, (name, (x, y)) in enumerate(zip(self.names, self._homes, strict=True)):
            self._say("commissioned", drone=name, index=i, x=x, y=y)
        for zone in dict.fromkeys(map(zone_of, self.names)):
            for number in range(area.pads):
                x, y = pad_of(area, zone, number)
                self._pads[cell_of(x, y)] = (f"pad-{zone}-{number}", (x, y))
                self._say("pad", pad=f"pad-{zone}-{number}", x=x, y=y)
        self._frame = self.physics.fixes()
        self._frame_t = start_t
        self._witness.tick(self.physics.position)

    # ------------------------------------------------------------------ time

    def now_t(self) -> float:
        """The time of the satellites: as far as `advance` has come."""
        return self._start_t + self.physics.steps * STEP_S

    def advance(self, to_t: float) -> None:
        """Lets everything happen up to this time, in steps of STEP_S."""
        last = math.floor((to_t - self._start_t) / STEP_S + 1e-6)
        while self.physics.steps < last:
            self.physics.step()
            for happening in self.physics.take_happened():
                self._happened(happening)
            while self._repairs and self._repairs[0][0] <= self.now_t():
                self._repair(*heapq.heappop(self._repairs)[1:])
            if self.physics.steps % FIX_STEPS == 0:
                self._tick()

    def each_frame(self, framed: Framed) -> None:
        """Calls this twice a second with what all flight controllers say."""
        self._each_frame.append(framed)

    def frame(self) -> tuple[float, Frame]:
        """The last frame, and its time. Its rows are in the order of `names`."""
        return self._frame_t, self._frame

    def close(self) -> None:
        """Closes the files of the witness."""
        self._witness.close()

    def _tick(self) -> None:
        self._frame, self._frame_t = self.physics.fixes(), self.now_t()
        self._witness.tick(self.physics.position)
        if self._jams and any(until_t <= self._frame_t for until_t, _ in self._jams):
            self._jams = [jam for jam in self._jams if jam[0] > self._frame_t]
            self._jam()
        for framed in self._each_frame:
            framed(self._frame_t, self.names, self._frame)

    # ------------------------------------------------------------------ what agents see and say

    def fix(self, drone: str) -> Fix | None:
        """What its flight controller said last; None if it is silent, or there is no such drone."""
        i = self._index.get(drone)
        return None if i is None else fix_of(self._frame_t, self._frame[i].tolist())

    async def order(self, drone: str, action: Action, key: str, token: int) -> None:
        """Carries out an order. It never waits."""
        i = self._index.get(drone)
        if i is None:
            raise DeviceRefused(f"there is no drone {drone} here")
        if self._orders.has(drone, key):
            return
        if self.physics.failed[i]:
            raise DeviceRefused(f"the motors of {drone} have failed; somebody has to fetch it")
        if self.physics.computer_failed[i]:
            raise Unreachable(f"the computer of {drone} is restarting")
        self._orders.check(drone, key, token)
        self._obey(i, drone, action)
        self._orders.keep(drone, key, token)
        for happening in self.physics.take_happened():
            self._happened(happening)

    async def arm_box(self, action: ArmBox, key: str) -> None:
        """Arms a box. It never waits."""
        if key in self._box_keys:
            return
        self.parcels.arm(action)
        self._box_keys[key] = None
        if len(self._box_keys) > BOX_KEYS_MAX:
            del self._box_keys[next(iter(self._box_keys))]

    def _obey(self, i: int, drone: str, action: Action) -> None:
        physics = self.physics
        at, down = (float(physics.position[0, i]), float(physics.position[1, i])), bool(physics.down[i])
        match action:
            case Steer(x, y, z, speed):
                self._check(i, drone, action)
                physics.set_target(i, x, y, z, speed)
            case Land():
                if not down:
                    physics.land(i)
            case Grip(job, token):
                physics.payload_kg[i] = self.parcels.grip(drone, at, down, job, token)
            case Release(job, token):
                self.parcels.release(drone, at, down, job, token)
                physics.payload_kg[i] = 0.0
            case _:
                raise DeviceRefused(f"a drone cannot {type(action).__name__}; it can steer, land, grip and release")

    def _check(self, i: int, drone: str, steer: Steer) -> None:
        x, y, z, speed = steer.x, steer.y, steer.z, steer.speed
        if not (all(map(math.isfinite, (x, y, z, speed))) and 0.0 <= z <= HEIGHT_M_MAX and speed > 0.0):
            raise DeviceRefused(
                f"{drone}: {x}, {y} at {z} m with {speed} m/s is no course; heights end at {HEIGHT_M_MAX:.0f} m"
            )
        if not self.physics.down[i]:
            return
        if z > 0.0 and self.physics.battery[i] <= 0.0:
            raise DeviceRefused(f"{drone}: the battery is empty")
        if z <= 0.0 and self.physics.distance_m(i, x, y) > NEAR_M:
            raise DeviceRefused(f"{drone} is down and has to take off before it can land elsewhere")

    # ------------------------------------------------------------------ what happens

    def fail(self, drone: str, kind: Kind, for_s: float = math.inf) -> None:
        """Breaks something, for so long. motor: it comes down by parachute and is silent. radio: it has no link.
        computer: it is silent, and flies on to where it was steered. One with new motors waits on the ground."""
        i = self._index[drone]
        self.physics.fail(i, kind)
        x, y, _ = self.physics.position[:, i].tolist()
        self._say("failed", drone=drone, kind=kind, for_s=for_s if math.isfinite(for_s) else msgspec.UNSET, x=x, y=y)
        until_t = self._until[i, kind] = max(self._until.get((i, kind), 0.0), self.now_t() + for_s)
        if math.isfinite(until_t):
            heapq.heappush(self._repairs, (until_t, i, kind))

    def jam(self, zone: str, for_s: float) -> None:
        """No drone above this zone has a link, for so long."""
        self._jams.append((self.now_t() + for_s, zone))
        self._say("jammed", name=zone, for_s=for_s)
        self._jam()

    def announce(self, zone: ClosedZone) -> None:
        """For the witness: the authority has announced a closed zone now."""
        self._say(
            "zone_closed",
            name=zone.name,
            corners=zone.corners,
            floor_m=zone.floor_m,
            ceiling_m=zone.ceiling_m,
            from_t=zone.from_t,
            until_t=zone.until_t,
        )

    def announce_open(self, name: str) -> None:
        """For the witness: the authority has opened a closed zone before its time."""
        self._say("zone_opened", name=name)

    def announce_link(self, region: str, *, up: bool) -> None:
        """For the witness: the link of a region to everybody else was cut, or is back; or its node was."""
        self._say("joined" if up else "cut_off", name=region)

    def _jam(self) -> None:
        squares = []
        for _, zone in self._jams:
            column, row = place_of(zone)
            size = self.area.zone_m
            squares.append((column * size, row * size, (column + 1) * size, (row + 1) * size))
        self.physics.jammed = tuple(squares)

    def _repair(self, i: int, kind: Kind) -> None:
        if kind == "motor" and not self.physics.down[i]:
            heapq.heappush(self._repairs, (self.now_t() + 1.0, i, kind))
            return
        if self._until.get((i, kind), math.inf) > self.now_t():
            return  # it has failed once more, for longer
        del self._until[i, kind]
        self.physics.repair(i, kind)
        self.physics.on_pad[i] = i in self._docked
        self._say("repaired", drone=self.names[i], kind=kind)

    def _happened(self, happening: Happening) -> None:
        i, name = happening.drone, self.names[happening.drone]
        x, y, _ = self.physics.position[:, i].tolist()
        match happening.what:
            case "failed":
                assert happening.kind is not None
                self.fail(name, happening.kind, OUT_OF_ORDER_S[happening.kind])
                return
            case "took_off":
                self._undock(i)
            case "landed":
                self._landed(i, name, x, y)
            case "battery_empty":
                pass
        self._say(happening.what, drone=name, x=x, y=y, battery=round(float(self.physics.battery[i]), 2))

    def _landed(self, i: int, name: str, x: float, y: float) -> None:
        if math.dist((x, y), self._homes[i]) <= NEAR_M and self.parcels.hand_in(name):
            self.physics.payload_kg[i] = 0.0
        pad = self._pads.get(cell_of(x, y))
        if pad is not None and math.dist((x, y), pad[1]) <= NEAR_M and not self.physics.failed[i]:
            self.physics.on_pad[i] = True
            self._docked[i] = pad[0]
            self._say("docked", drone=name, pad=pad[0])

    def _undock(self, i: int) -> None:
        if i in self._docked:
            self._say("undocked", drone=self.names[i], pad=self._docked.pop(i))

    def _say(self, fact: str, **fields: object) -> None:
        self._witness.write(Fact(self.now_t(), fact, **fields))  # type: ignore[arg-type]


class _Witness:
    """Writes down what really happened. Without a folder it keeps the facts in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self.facts: deque[Fact] = deque(maxlen=FACTS_MAX)
        self._encoder = msgspec.json.Encoder()
        self._lines = self._positions = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = (folder / "world.jsonl").open("wb")
            self._positions = (folder / "world.f4").open("wb")

    def write(self, fact: Fact) -> None:
        self.facts.append(fact)
        if self._lines is not None and not self._lines.closed:  # an order may come behind the end of a run
            self._lines.write(self._encoder.encode(fact) + b"\n")

    def tick(self, position: NDArray[np.float64]) -> None:
        """What came before is in the files from now on, also if the process is killed."""
        if self._lines is not None and self._positions is not None:
            self._positions.write(position.T.astype("<f4").tobytes())
            self._positions.flush()
            self._lines.flush()

    def close(self) -> None:
        if self._lines is not None and self._positions is not None:
            self._lines.close()
            self._positions.close()
