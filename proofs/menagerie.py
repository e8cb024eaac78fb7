"""Agents that do everything the core knows, and fail in every way it knows, steered by the data they are sent.

They are made for random histories: each number in a message chooses a branch, so that a history needs no code.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Struct

from stigmergy import (
    Action,
    ActionDone,
    ActionFailed,
    Agent,
    AgentResumed,
    AgentStopped,
    CancelWake,
    Command,
    Effects,
    Event,
    Events,
    InputFailed,
    Publish,
    SafeAction,
    Supervise,
    Tell,
    WakeMe,
    WakeMeAt,
    Window,
    WindowClosed,
    Woken,
    Work,
    decide,
    evolve,
    field,
    latest,
    react,
    reject,
    transient,
    upcast,
    within,
)

NAMES = tuple("abcdefgh")
BIG = 20_000
"""Padding that makes a message large, so that some drafts fill up."""


class Crash(Exception):
    """What handlers raise here."""


class Do(Command):
    """A command with all outcomes: 0-1 refused, 2 crash before and 3 crash between events, 4 nothing, 5 tell …"""

    n: int
    to: str = "Worker/a"


class Done(Event):
    n: int
    to: str = ""


class Counted(Event):
    """Kept as it is; a plain event, the shard's short path."""

    n: int
    pad: str = ""


class SampledV1(Event, name="Sampled", version=1):
    value: int


class SampledV2(Event, name="Sampled", version=2):
    value: int
    unit: str = "mm"


class Sampled(Event, name="Sampled", version=3):
    """Feeds the windows; the third version of its layout."""

    metres: float
    at_s: float = 0.0


@upcast
def sampled_1_to_2(old: SampledV1) -> SampledV2:
    return SampledV2(value=old.value)


@upcast
def sampled_2_to_3(old: SampledV2) -> Sampled:
    if old.value == 13:
        raise Crash("thirteen")
    return Sampled(metres=old.value / 1000)


class Placed(Event, keep=latest):
    x: float
    by_now: bool = False


class Soon(Event, keep=within(seconds=2)):
    n: int


class Glimpsed(Event, keep=transient):
    n: int


class Filtered(Event):
    """An observed event with a decide handler: passed on, dropped, changed or multiplied."""

    n: int


class Move(Action):
    n: int


class Plan(Work):
    n: int


class Pose(Struct, frozen=True):
    x: float = 0.0
    y: Annotated[float, msgspec.Meta(ge=-1e9)] = 0.0


class Worker(Agent):
    """Containers in its state, windows of all shapes, timers, tells, and a supervision that stops it."""

    log: list[int] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)
    seen_at: float = 0.0
    pose: Pose = Pose()
    failures: int = 0
    last: Window[Sampled] = Window.last(3)
    sliding: Window[Sampled] = Window.sliding(seconds=5, count_max=4)
    by_time: Window[Sampled] = Window.sliding(seconds=5, by="at_s")
    minute: Window[Sampled] = Window.tumbling(seconds=3, late_s=1)
    buckets: Window[Sampled] = Window.tumbling(seconds=2, by="at_s", late_s=2, count_max=5)

    supervision = Supervise(stop_after=3, within_s=6)
    safe = SafeAction(then=Move(n=-1))

    @decide
    def do(self, command: Do) -> Events:
        if command.n in (0, 1):
            reject(f"{command.n} after {len(self.log)}")
        if command.n == 2:
            raise Crash("before")
        yield Done(n=command.n, to=command.to)
        if command.n == 3:
            raise Crash("between")
        if command.n > 7:
            yield Done(n=command.n + 1)
            yield Glimpsed(n=command.n)
            yield Placed(x=float(command.n))

    @decide
    def filtered(self, event: Filtered) -> Events:
        if event.n % 4 == 0:
            return
        if event.n % 4 == 1:
            yield event
        if event.n % 4 == 2:
            yield Filtered(n=event.n + 1)
            yield Filtered(n=event.n + 2)
        if event.n % 11 == 10:
            reject("an observation")

    @evolve
    def done(self, event: Done) -> None:
        self.log.append(event.n)
        del self.log[:-5]
        if event.n == 5:
            raise Crash("half way through evolve")
        self.tally[event.to] = self.tally.get(event.to, 0) + 1
        self.seen_at = self.now

    @evolve
    def also(self, event: Filtered | Counted | Soon) -> None:
        self.tally[type(event).__name__] = event.n
        if event.n == 17:
            self.log.append(17)
            raise Crash("seventeen")

    @evolve
    def placed(self, event: Placed) -> None:
        self.pose = Pose(x=event.x, y=self.now if event.by_now else 0)
        if event.x == 99.0:
            self.log.append(99)

    @react
    def act(self, event: Done) -> Effects:
        match event.n % 16:
            case 4:
                yield Tell(to=event.to, message=Counted(n=event.n))
                yield Tell(to=event.to, message=Do(n=4, to=self.address))
            case 6:
                yield Move(n=event.n)
                raise Crash("after an effect")
            case 7:
                yield WakeMe(name="soon", after_s=1.5)
                yield WakeMeAt(name="at", at_s=self.now + 2)
                yield Publish(topic="done", event=event)
            case 8:
                yield Move(n=len(self.log))
                yield Plan(n=event.n)
            case 9:
                yield Tell(to="Nobody/x", message=Counted(n=1))
            case 10:
                yield CancelWake(name="soon")
            case 11:
                yield Tell(to="Simple/b", message=Counted(n=len(self.log)))
            case _:
                pass

    @react
    def glimpse(self, event: Glimpsed) -> Effects:
        if event.n % 2:
            yield Move(n=event.n)
        if event.n == 13:
            raise Crash("in a transient reaction")

    @evolve
    def woken(self, event: Woken) -> None:
        self.tally[event.name] = self.tally.get(event.name, 0) + 1

    @react
    def wake_again(self, event: Woken) -> Effects:
        if self.tally.get(event.name, 0) % 3:
            yield WakeMe(name=event.name, after_s=0.5)

    @evolve
    def closed(self, event: WindowClosed) -> None:
        self.tally["closed " + event.window] = len(getattr(self, event.window).closed)
        if self.tally["closed " + event.window] == 2:
            raise Crash("closing")

    @react
    def on_closed(self, event: WindowClosed) -> Effects:
        if len(self.log) == 3:
            raise Crash("reacting to a closing")
        yield Move(n=len(self.minute))

    @evolve
    def confirmed(self, event: ActionDone) -> None:
        self.log.append(-1)

    @evolve
    def failed(self, event: InputFailed) -> None:
        self.failures += 1
        if self.failures % 5 == 0:
            raise Crash("evolving a failure")

    @react
    def on_failed(self, event: InputFailed) -> Effects:
        if self.failures % 3 == 0:
            raise Crash("reacting to a failure")
        yield Move(n=self.failures)

    @react
    def on_stopped(self, event: AgentStopped) -> Effects:
        yield Publish(topic="stopped", event=event)

    @evolve
    def resumed(self, event: AgentResumed) -> None:
        self.log.clear()


class Simple(Agent):
    """Only immutable fields; numbers that Python lets pass for one another."""

    count: int = 0
    level: float = 0.0
    text: str = ""
    flag: bool = False
    odd: bool = False

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += event.n
        self.level = 0 if event.n % 2 else event.n * 2**52 + 1
        self.text = f"{self.level}"
        if event.n == 17:
            raise Crash("seventeen")

    @react
    def on_counted(self, event: Counted) -> Effects:
        if event.n == 18:
            yield Move(n=1)
            raise Crash("eighteen")
        if event.n % 5 == 0:
            yield Move(n=event.n)
        if event.n == 21:
            yield Tell(to=self.address, message=Counted(n=1))

    @evolve
    def placed(self, event: Placed) -> None:
        # The order of what is kept shows in the sign of zero and in what `soon` saw.
        self.level = -0.0 if self.level == 99.0 and event.x == 0.0 else event.x
        self.count = event.by_now

    @evolve
    def soon(self, event: Soon) -> None:
        self.flag = event.n > self.now % 7
        self.odd = self.odd or self.level == 1.0

    @evolve
    def failed(self, event: ActionFailed) -> None:
        self.text = event.reason


class Quiet(Agent):
    """Has a handler for nothing but a command, and yields what nobody folds."""

    @decide
    def do(self, command: Do) -> Events:
        if command.n < 5:
            yield Placed(x=float(command.n))
        yield Soon(n=command.n)


MENAGERIE: tuple[type[Agent], ...] = (Worker, Simple, Quiet)


def unknown_fields(event: Event, **extra: Any) -> bytes:
    """The event as a newer version of its sender would write it."""
    return msgspec.msgpack.encode({**msgspec.to_builtins(event), **extra})
