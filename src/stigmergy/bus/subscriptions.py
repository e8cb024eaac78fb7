"""A fleet's subscriptions and its messages to devices, as users declare them. A declaration does nothing by itself.

    fleet.listen("Drone/{id}/battery", to="Monitor/{id}")
    fleet.device("agents/{id}/battery", to="Drone/{id}", event=BatteryMeasured, fields={"percent": "level"})
    fleet.members(to="Dispatcher/main")

`network/subscriber.py` carries it out when the fleet runs on a bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from stigmergy.agents.messages import Command, Event, Message, is_number
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import DefinitionError
from stigmergy.bus.layout import PayloadLayout
from stigmergy.bus.mapping import DeviceCommands, DeviceEvent, DeviceOrder
from stigmergy.bus.presence import MemberJoined, MemberLeft
from stigmergy.bus.topics import AGENTS, Channel, TopicTemplate, escape, places_of, read_template

History = Literal["all", "latest"] | float | None
"""What was published before an agent listens: all of it, the newest of each topic, or of so many seconds."""


class Listen(Struct, frozen=True):
    """Events that other agents publish are given to agents here."""

    what: TopicTemplate
    """Kind, name and topic."""
    to: str
    fleet: str | None
    site: str | None
    history: History = None

    def template(self, fleet: str, site: str) -> TopicTemplate:
        """Its topics on the bus, for a node of this fleet and site."""
        kind, name, *about = (_written(level) for level in self.what.levels)
        levels = (_written(self.fleet or fleet), _written(self.site or site), AGENTS, kind, name, Channel.EVENTS.value)
        return TopicTemplate(self.what.text, (*levels, *about))


class Collect(Struct, frozen=True):
    """Events that arrive by uplinks of other nodes are given to agents here."""

    what: TopicTemplate
    """Kind and name."""
    to: str
    fleet: str | None
    site: str | None

    def match(self, address: str) -> dict[str, str] | None:
        """The values of its places in an agent's address; None if it does not match."""
        return self.what.match(address)


COLLECT_ALL = Collect(TopicTemplate("{kind}/{id}", ("{kind}", "{id}"), escaped=False), "{kind}/{id}", None, None)
"""Every agent of the nodes of this fleet and site, under the same address."""


class Subscriptions:
    """The declarations of a fleet."""

    name: str
    plans: Mapping[str, AgentPlan]

    def __init__(self) -> None:
        self.listens: list[Listen] = []
        self.collects: list[Collect] = []
        self.device_events: list[DeviceEvent] = []
        self.device_commands_taken: list[DeviceCommands] = []
        self.device_orders: list[DeviceOrder] = []
        self.interested: list[str] = []
        """Agents that are told who joins and leaves."""

    def listen(
        self, what: str, *, to: str, fleet: str | None = None, site: str | None = None, history: History = None
    ) -> None:
        """Gives published events to agents here: `Drone/{id}/battery` is what each Drone publishes as `battery`.

        `{id}` stands for any name and may be used in `to`; `+` stands for anything. `fleet` and `site` default to the
        node's own; `site="+"` means all sites. Each event arrives once, and in order. With `history` it also gets what
        was published before: "all", the "latest" of each topic, or that of so many seconds.
        """
        template = read_template(what)
        seconds: Any = history
        is_time = is_number(seconds) and not isinstance(seconds, bool) and seconds > 0
        if history not in (None, "all", "latest") and not is_time:
            raise DefinitionError(f"listen({what!r}): history={history!r}; give 'all', 'latest' or a number of seconds")
        if history is not None and site == "+":
            raise DefinitionError(f"listen({what!r}): history is asked for site by site; name the site, once for each")
        if len(template.levels) < 3:
            raise DefinitionError(f"listen({what!r}): write Kind/name/topic, such as 'Drone/{{id}}/battery'")
        self._check_to("listen", what, to, template.names)
        self.listens.append(Listen(template, to, fleet, site, history))

    def collect(
        self, what: str = "{kind}/{id}", *, to: str | None = None, fleet: str | None = None, site: str | None = None
    ) -> None:
        """Receives from uplinks: `fleet.collect("Drone/{id}", to="Twin/{id}")` gives each Drone's events to a Twin.

        Without `to` they go to the same address here, and so do events that no declaration names. `fleet` and `site`
        default to the node's own; `site="+"` means all sites. Each event arrives once, in order.
        """
        template = read_template(what, escaped=False)
        if len(template.levels) != 2:
            raise DefinitionError(f"collect({what!r}): write Kind/name, such as 'Drone/{{id}}'")
        to = what if to is None else to
        if "+" in to:
            raise DefinitionError(
                f"collect({what!r}): + is not an address; name the place, such as {{id}}, or give to=…"
            )
        if not places_of(to.partition("/")[0]):
            self._check_to("collect", what, to, template.names)
        elif any(place not in template.names for place in places_of(to)):
            raise DefinitionError(f"collect({what!r}): to={to!r} has a place that {what!r} does not have")
        self.collects.append(Collect(template, to, fleet, site))

    def device(
        self,
        topic: str,
        *,
        to: str,
        event: type[Event],
        fields: Mapping[str, str] | None = None,
        same: Mapping[str, str] | None = None,
        layout: PayloadLayout | None = None,
    ) -> None:
        """Makes plain JSON of a device on a topic an event that `to` has observed; with `layout`, a binary payload.

        `fields` gives the path of each field of the event in the JSON, or its name in the layout; `same` the places of
        the topic that it must agree with. Such a message has no number: if a broker repeats it, it is observed twice.
        """
        template = read_template(topic, escaped=False)
        plan = self._check_to("device", topic, to, template.names)
        _check_fields("device", event, fields or {})
        self._check_known("device", plan, event)
        _check_places("device", topic, same or {}, template.names)
        if layout is not None:
            _check_layout(topic, event, fields or {}, layout)
        self.device_events.append(DeviceEvent(template, to, event, dict(fields or {}), dict(same or {}), layout))

    def device_commands(
        self,
        topic: str,
        *,
        to: str,
        commands: Sequence[type[Command]],
        by: str = "type",
        id: str = "id",
        same: Mapping[str, str] | None = None,
        answers: str | None = None,
    ) -> None:
        """Makes plain JSON on a topic commands: `{"type": "StartMission", "mission": "M1"}`.

        `by` and `id` are the paths of the command's name and its id; `answers` is the topic for answers.
        """
        template = read_template(topic, escaped=False)
        plan = self._check_to("device_commands", topic, to, template.names)
        for command in commands:
            self._check_known("device_commands", plan, command)
        _check_places("device_commands", topic, same or {}, template.names)
        named = {command.__name__: command for command in commands}
        answer = None if answers is None else read_template(answers, escaped=False)
        for place in answer.names if answer else ():
            if place not in template.names:
                raise DefinitionError(
                    f"device_commands({topic!r}): answers={answers!r} has a place that the topic lacks"
                )
        self.device_commands_taken.append(DeviceCommands(template, to, named, by, id, dict(same or {}), answer))

    def device_hears(
        self,
        what: str,
        *,
        topic: str,
        fields: Mapping[str, str] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        """Sends what an agent publishes to a device, as plain JSON: `Drone/{id}/orders` on `agents/{id}/command`.

        `fields` gives the path of each field in the JSON, `constants` more values. It replaces the agent's own topic.
        """
        template = read_template(what)
        if len(template.levels) < 3:
            raise DefinitionError(f"device_hears({what!r}): write Kind/name/topic, such as 'Drone/{{id}}/orders'")
        about = "/".join(template.levels[2:])
        agent = TopicTemplate(what, template.levels[:2], escaped=False)
        target = read_template(topic, escaped=False)
        if "+" in target.levels or any(place not in agent.names for place in target.names):
            raise DefinitionError(f"device_hears({what!r}): topic={topic!r} has a place that {what!r} does not have")
        self.device_orders.append(DeviceOrder(target, agent, about, dict(fields or {}), dict(constants or {})))

    def members(self, *, to: str) -> None:
        """Tells an agent who joins and leaves: it observes `MemberJoined` and `MemberLeft`."""
        plan = self._check_to("members", to, to, ())
        for event in (MemberJoined, MemberLeft):
            self._check_known("members", plan, event)
        self.interested.append(to)

    def _check_to(self, method: str, what: str, to: str, places: Sequence[str]) -> AgentPlan:
        kind, slash, _ = to.partition("/")
        if not slash or kind not in self.plans:
            raise DefinitionError(
                f"{method}({what!r}): to={to!r} is not an agent of fleet {self.name!r}; "
                f"write Kind/name with a kind of {', '.join(self.plans)}"
            )
        for place in places_of(to):
            if place not in places:
                raise DefinitionError(f"{method}({what!r}): to={to!r} has a place that {what!r} does not have")
        return self.plans[kind]

    def _check_known(self, method: str, plan: AgentPlan, message: type[Message]) -> None:
        if not plan.handles(message):
            raise DefinitionError(
                f"{method}: {plan.kind} has no handler for {message.__name__}; give it one, or it would go nowhere"
            )


def _check_fields(method: str, event: type[Message], fields: Mapping[str, str]) -> None:
    known = [field.name for field in structs.fields(event)]
    for name in fields:
        if name not in known:
            raise DefinitionError(f"{method}: {event.__name__} has no field {name!r}; it has {', '.join(known)}")


def _check_layout(topic: str, event: type[Event], fields: Mapping[str, str], layout: PayloadLayout) -> None:
    if not isinstance(layout, PayloadLayout):
        raise DefinitionError(f"device({topic!r}): layout={layout!r}; give PayloadLayout(…)")
    for field in structs.fields(event):
        name = fields.get(field.name, field.name)
        if name not in layout.names and field.required:
            raise DefinitionError(
                f"device({topic!r}): {event.__name__}.{field.name} is not in the layout, which has "
                f"{', '.join(layout.names)}; name it there, or give fields={{{field.name!r}: …}}"
            )


def _check_places(method: str, topic: str, same: Mapping[str, str], places: Sequence[str]) -> None:
    for place in same:
        if place not in places:
            raise DefinitionError(f"{method}({topic!r}): same names {place!r}, which is not a place of the topic")


def _written(level: str) -> str:
    """A level of a pattern: places and + as they are, texts escaped."""
    return level if level == "+" or level.startswith("{") else escape(level)
