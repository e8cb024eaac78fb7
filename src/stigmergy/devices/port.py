"""The device ports: what the runtime promises to code that reads sensors and drives actuators, and requires of it.

Users write plain functions: `@fleet.sensor`, `@fleet.actuator`, `@fleet.loop`. These protocols say what such a function
may rely on, and what it must do. An adapter for a vehicle or board offers objects that implement them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, Event

ActionT = TypeVar("ActionT", bound=Action)


class Sensor(Protocol):
    """Reads one quantity of one agent, when asked.

    Ordering: readings of one agent are taken in the order in which they were read. Never two reads of one sensor for
        the same agent at once; different agents are read side by side.
    Time: asked on a fixed grid of the monotonic clock. A read that overruns its period costs the ticks that it covers,
        which are skipped and counted; it never shifts the grid. A read has a deadline: an `async` one is cancelled, a
        plain one runs on a thread and is not asked again before it has returned.
    Errors: whatever it raises is counted and reported, and nothing else happens. A sensor that has failed is silent,
        and silence is what `WhenStale` is for.
    Back-pressure: one reading is on its way and one waits; a newer one replaces that which waits, and is counted.
    None: there is nothing to say this time.
    """

    def __call__(self, agent: str, /) -> Awaitable[Event | None] | Event | None:
        """A reading for the agent of this name (`D-17`, not `Drone/D-17`)."""
        ...


class Feed(Protocol):
    """Where a pushing sensor puts what it hears; one for each agent."""

    @property
    def agent(self) -> str:
        """The name of the agent that this is about: `D-17`."""
        ...

    def push(self, event: Event) -> None:
        """Offers a reading. Never waits and never raises for want of room: the newest wins, what it replaces is
        counted. Call it on the event loop."""
        ...

    async def send(self, event: Event) -> None:
        """Gives an event that must not be lost, past all thinning; returns when it is kept as its type promises.

        Raises what `live.observe` raises: Overloaded, NotRunning, JournalUnknown.
        """
        ...


class PushingSensor(Protocol):
    """Hears by itself and pushes. Begun once for each agent; begun again, after a growing pause, when it ends.

    Errors: whatever it raises is counted and reported, and it is begun again.
    Stopping: it is cancelled. One that does not let itself be cancelled is left behind after a bounded wait.
    """

    def __call__(self, feed: Any, /) -> Awaitable[None]:
        """Runs until it is cancelled or has nothing more to say."""
        ...


class Actuator(Protocol[ActionT]):
    """Carries out orders.

    Ordering: orders of one agent come one after the other, as they were decided; a safe action comes at once, past all.
    Durability: an order is given only after the decision behind it is on disk; a safe action is the exception.
    Duplication: at least once. The same `key` at each try, also after a restart: a device that remembers keys drops the
        repetition. `token` only ever grows per agent: a `Fence` refuses what is older than what was done.
    Errors: returning confirms. Raising reports, and it is tried again, so many times; DeviceRefused says that trying
        again is of no use. In the end the agent hears ActionFailed as an input: nothing is raised anywhere.
    Time: a try that takes longer than its time is cancelled and counts as failed. What the device did meanwhile is not
        known: this is why orders have keys, and why one should be able to ask (`confirm=`).
    """

    def __call__(self, order: Order[ActionT], /) -> Awaitable[None] | None:
        """Carries out one order."""
        ...


class Attachment(Protocol):
    """Something that sensors and actuators share: a link to a vehicle, an open bus. `fleet.attach` has it live with
    the node: opened before the first order can go out, closed after the last safe action."""

    async def open(self) -> None:
        """Begins. What comes and goes afterwards it mends itself; raises only what makes a start pointless."""
        ...

    async def close(self) -> None:
        """Ends."""
        ...
