"""The devices of a fleet as users declare them: sensors, actuators, workers and control loops.

A declaration does nothing by itself. `node/device_tasks.py` runs sensors and loops, `node/effector.py` the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, Event, Work, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import ConfigError, DefinitionError, NotOwned
from stigmergy.devices.actuators import Confirm, RetryPolicy, confirmed
from stigmergy.devices.filters import Take, Thinning
from stigmergy.devices.loops import LoopSpec, MakeSafe, SetPoints, Tick
from stigmergy.devices.port import Attachment
from stigmergy.devices.sensors import WITHIN_S_MIN, Polled, Pushed, SensorSpec, check_every
from stigmergy.devices.staleness import safe_actions_of
from stigmergy.journal.port import Guard

ActionT = TypeVar("ActionT", bound=Action)
WorkT = TypeVar("WorkT", bound=Work)
AgentT = TypeVar("AgentT", bound=Agent)
AttachmentT = TypeVar("AttachmentT", bound=Attachment)
BatchedActuatorT = TypeVar("BatchedActuatorT", bound="BatchedActuator")
PolledT = TypeVar("PolledT", bound=Polled)
PushedT = TypeVar("PushedT", bound=Pushed)
ActuatorFunction = Callable[[Order[Any]], Awaitable[Event | None] | Event | None]
"""An actuator or worker: given an order, it returns when it is done, or raises."""
BatchedActuator = Callable[[Any], Awaitable[None] | None]
"""The same for many orders at once: see node/column_actuators.py."""


class Actuators(Struct, frozen=True):
    """Who carries out which effect, by the effect's tag."""

    by_tag: dict[str, tuple[type[Action] | type[Work], ActuatorFunction]]
    retry_policy: dict[str, RetryPolicy] = {}
    """How often and for how long; the settings say it for those that are not named here."""
    batched: dict[str, tuple[type[Action], BatchedActuator]] = {}
    """Who carries out actions of compiled agents in bulk."""

    def guarded(self, guard: Guard) -> Actuators:
        """The same, but each checks the guard at the last moment, and raises NotOwned instead of acting."""
        return structs.replace(
            self,
            by_tag={tag: (effect, _guarded(call, guard)) for tag, (effect, call) in self.by_tag.items()},
            batched={tag: (effect, _guarded(call, guard)) for tag, (effect, call) in self.batched.items()},
        )


def _guarded(actuator: Callable[[Any], Any], guard: Guard) -> Callable[[Any], Any]:
    def check() -> None:
        if not guard():
            raise NotOwned("this worker has lost its lease; the next owner of the shard carries it out")

    if inspect.iscoroutinefunction(actuator):

        async def begin(order: Any) -> Any:
            check()
            return await actuator(order)

        return begin

    def call(order: Any) -> Any:
        check()
        return actuator(order)

    return call


class Equipment:
    """The devices' side of a fleet."""

    name: str
    plans: Mapping[str, AgentPlan]

    def __init__(self) -> None:
        self._actuators: dict[str, tuple[type[Action] | type[Work], ActuatorFunction]] = {}
        self._retry_policies: dict[str, RetryPolicy] = {}
        self._batched: dict[str, tuple[type[Action], BatchedActuator]] = {}
        self._nobody: dict[str, str] = {}
        self.attachments: list[Attachment] = []
        self.sensors: dict[str, SensorSpec] = {}
        self.loops: dict[str, LoopSpec] = {}

    @property
    def actuators(self) -> Actuators:
        """The registered actuators and workers."""
        return Actuators(dict(self._actuators), dict(self._retry_policies), dict(self._batched))

    def attach(self, attachment: AttachmentT) -> AttachmentT:
        """Has something that sensors and actuators share opened with each node of this fleet, and closed with it."""
        self.attachments.append(attachment)
        return attachment

    @overload
    def sensor(
        self,
        kind: type[Agent],
        *,
        every_s: float,
        within_s: float | None = None,
        at_most_hz: float | None = None,
        keep_every: int = 1,
        over_s: float | None = None,
        take: Take = "last",
        agents: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Callable[[PolledT], PolledT]: ...

    @overload
    def sensor(
        self,
        kind: type[Agent],
        *,
        at_most_hz: float | None = None,
        keep_every: int = 1,
        over_s: float | None = None,
        take: Take = "last",
        agents: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Callable[[PushedT], PushedT]: ...

    def sensor(
        self,
        kind: type[Agent],
        *,
        every_s: float | None = None,
        within_s: float | None = None,
        at_most_hz: float | None = None,
        keep_every: int = 1,
        over_s: float | None = None,
        take: Take = "last",
        agents: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Callable[[Any], Any]:
        """Registers what reads a device for agents of this kind; what it returns or pushes is observed.

        With `every_s` it is asked on that beat with the agent's name, and may return None; a plain function runs on a
        thread. Without, it is an `async` function that pushes into a `Feed`, or an async generator. A read takes at
        most `within_s`. `at_most_hz`, `keep_every` and `over_s` with `take` thin out what it says. `agents` names whom
        it is for; otherwise it is for the node's agents, see `fleet.running(agents=…)`.
        """

        def register(call: Any) -> Any:
            called = name or _name_of(call)
            what = f"sensor {called}"
            self._check_kind(what, kind)
            if called in self.sensors:
                raise DefinitionError(f"{what}: there is one of this name already; give another with name=…")
            thinning = Thinning(at_most_hz, keep_every, over_s, take)
            thinning.check(what)
            limit_s = within_s
            if every_s is None:
                _check_pushes(what, call)
            else:
                check_every(what, every_s)
                if inspect.isasyncgenfunction(call):
                    raise DefinitionError(f"{what}: it speaks by itself, so leave every_s=… out, or return instead")
                limit_s = max(every_s, WITHIN_S_MIN) if within_s is None else within_s
                RetryPolicy(within_s=limit_s).check(what)
            names = _names(what, kind, agents)
            self.sensors[called] = SensorSpec(called, kind, call, every_s, limit_s or 0.0, thinning, names)
            return call

        return register

    def loop(
        self,
        kind: type[AgentT],
        *,
        every_s: float,
        safe: MakeSafe | None = None,
        set_points: SetPoints[Any] | None = None,
        agents: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Callable[[Callable[[Tick[AgentT]], Awaitable[None] | None]], Callable[[Tick[AgentT]], Any]]:
        """Registers an inner control loop beside agents of this kind. It runs on the event loop: let it return soon.

        It turns only while its agent is there and not stopped, the node lives and, if given, `set_points` has a fresh
        one. Otherwise, and when it raises, `safe` is called with the agent's name, once.
        """

        def register(call: Callable[[Tick[AgentT]], Awaitable[None] | None]) -> Callable[[Tick[AgentT]], Any]:
            called = name or _name_of(call)
            what = f"loop {called}"
            self._check_kind(what, kind)
            check_every(what, every_s)
            if called in self.loops:
                raise DefinitionError(f"{what}: there is one of this name already; give another with name=…")
            names = _names(what, kind, agents)
            self.loops[called] = LoopSpec(called, kind, call, every_s, safe, set_points, names)
            return call

        return register

    def actuator(
        self,
        action: type[ActionT],
        *,
        tries: int | None = None,
        within_s: float | None = None,
        confirm: Callable[[Order[ActionT]], Awaitable[bool] | bool] | None = None,
    ) -> Callable[[Callable[[Order[ActionT]], Awaitable[None] | None]], Callable[[Order[ActionT]], Any]]:
        """Registers who carries out an action. Returning confirms, raising reports; both come back as inputs.

        `tries` and `within_s`, the time for each, are the settings' unless given. With `confirm` returning is not
        enough: the world is asked, first and after acting, whether it is so, and the try lasts until it is.
        """

        def register(actuator: Callable[[Order[ActionT]], Awaitable[None] | None]) -> Callable[[Order[ActionT]], Any]:
            seen: Confirm | None = confirm
            _check_actuator("actuator", Action, action, actuator)
            self._register(
                action, actuator if seen is None else confirmed(actuator, seen), RetryPolicy(tries, within_s)
            )
            return actuator

        return register

    def batch_actuator(
        self, action: type[ActionT], *, tries: int | None = None, within_s: float | None = None
    ) -> Callable[[BatchedActuatorT], BatchedActuatorT]:
        """Registers who carries out this action for compiled agents, many orders at a time: it is given `Orders`.

        Returning confirms all of them. What interpreted agents ask for, and what makes agents safe, still needs an
        actuator.
        """

        def register(actuator: BatchedActuatorT) -> BatchedActuatorT:
            _check_actuator("batch_actuator", Action, action, actuator)
            tag = spec_of(action).tag
            if tag in self._batched:
                raise DefinitionError(
                    f"fleet {self.name!r}: {action.__name__} has somebody to carry it out in bulk already"
                )
            retry_policy = RetryPolicy(tries, within_s)
            retry_policy.check(f"fleet {self.name!r}: {action.__name__}")
            self._batched[tag] = (action, actuator)
            self._retry_policies.setdefault(tag, retry_policy)
            return actuator

        return register

    def worker(
        self, work: type[WorkT], *, tries: int | None = None, within_s: float | None = None
    ) -> Callable[[Callable[[Order[WorkT]], Awaitable[Event] | Event]], Callable[[Order[WorkT]], Any]]:
        """Registers who does slow work. The event it returns comes back to the agent as an observed one."""

        def register(actuator: Callable[[Order[WorkT]], Awaitable[Event] | Event]) -> Callable[[Order[WorkT]], Any]:
            _check_actuator("worker", Work, work, actuator)
            self._register(work, actuator, RetryPolicy(tries, within_s))
            return actuator

        return register

    def no_actuator(self, action: type[Action], *, because: str) -> None:
        """Says that nobody carries out this safe action here, and why that is right: no vehicle is on this node."""
        if not because.strip():
            raise DefinitionError(f"no_actuator({action.__name__}): say why, in because=…; somebody will ask")
        self._nobody[spec_of(action).tag] = because

    def check_safe_actions(self) -> None:
        """Raises ConfigError for a safe action that nobody would carry out: it would be missed in an emergency."""
        for plan in self.plans.values():
            for action in safe_actions_of(plan):
                kind, tag = type(action), spec_of(type(action)).tag
                if tag not in self._actuators and tag not in self._nobody:
                    raise ConfigError(
                        f"{plan.cls.__name__} is to be made safe by {kind.__name__}, and nobody carries that out; "
                        f"write an actuator, @fleet.actuator({kind.__name__}), or, where there is nothing to make "
                        f'safe, fleet.no_actuator({kind.__name__}, because="…")'
                    )

    def _register(
        self, effect: type[Action] | type[Work], actuator: ActuatorFunction, retry_policy: RetryPolicy
    ) -> None:
        tag = spec_of(effect).tag
        if tag in self._actuators:
            raise DefinitionError(f"fleet {self.name!r}: {effect.__name__} has somebody to carry it out already")
        retry_policy.check(f"fleet {self.name!r}: {effect.__name__}")
        self._actuators[tag] = (effect, actuator)
        self._retry_policies[tag] = retry_policy

    def _check_kind(self, what: str, kind: type[Agent]) -> None:
        if not any(plan.cls is kind for plan in self.plans.values()):
            raise DefinitionError(f"{what}: {kind.__name__} is no agent class of fleet {self.name!r}; add it there")


def _check_actuator(what: str, wanted: type, effect: object, actuator: object) -> None:
    if not (isinstance(effect, type) and issubclass(effect, wanted)):
        raise DefinitionError(f"{what}({effect!r}): name a class that subclasses {wanted.__name__}")
    if not callable(actuator):
        raise DefinitionError(f"{what}({effect.__name__}): {actuator!r} is no function; put it above one")


def _names(what: str, kind: type[Agent], agents: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of agents, given as names or addresses."""
    if agents is None:
        return None
    if isinstance(agents, str):
        raise DefinitionError(f"{what}: agents={agents!r}; give a list of names, [{agents!r}]")
    prefix = f"{kind.__agent_kind__}/"
    names = tuple(agent.removeprefix(prefix) for agent in agents)
    for agent, name in zip(agents, names, strict=True):
        if not name or "/" in name:
            raise DefinitionError(f"{what}: agents has {agent!r}; give names of {kind.__name__} agents, like 'D-17'")
    return tuple(dict.fromkeys(names))


def _name_of(call: Any) -> str:
    name = getattr(call, "__qualname__", None) or type(call).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _check_pushes(what: str, call: Any) -> None:
    pushes = inspect.isasyncgenfunction(call) or inspect.iscoroutinefunction(call)
    if not pushes and not inspect.iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004
        raise DefinitionError(
            f"{what}: a sensor that is not asked must be async and push into its feed; give every_s=… to have it asked"
        )
