"""What agents of the city say to each other and to the world. Pure."""

from __future__ import annotations

from msgspec import Struct

from apps.city.layouts import CHANNELS, RULE, STEPS
from apps.city.plan import City
from stigmergy import Action, Command, Entry, Event, Inputs, Ledger, Model, transient, within


class Sampled(Event, keep=within(seconds=1), raw=True):
    """What a gas sensor has measured. It does not leave the gateway."""

    number: int
    s1: float
    s2: float
    s3: float
    s4: float
    s5: float
    temperature: float
    humidity: float


class Levelled(Event, keep=within(seconds=1), raw=True):
    """What a sensor of noise, traffic or crowds has measured. It does not leave the gateway."""

    number: int
    value: float


class GasAlarm(Model, name="gas-alarm", within_s=0.5):
    """How likely each gas is over its limit."""

    co: float
    no2: float

    @classmethod
    def fallback(cls, inputs: Inputs) -> GasAlarm:
        """The threshold rule on the last reading of the window."""
        last = dict(zip(CHANNELS, list(inputs)[(STEPS - 1) * len(CHANNELS) :], strict=True))
        (co, co_limit), (no2, no2_limit) = RULE["co"], RULE["no2"]
        return cls(co=0.9 * (last[co] > co_limit), no2=0.9 * (last[no2] > no2_limit))


# ---------------------------------------------------------------------- between sensors and their district


class Suspected(Event):
    """A sensor is sure enough that something is wrong."""

    sensor: str
    what: str
    """co, no2, noise, flow, crowd."""
    confidence: float
    since_s: float
    because: str = ""
    """The version of the model, or why the rule spoke."""


class Calmed(Event):
    """It is not suspicious any more."""

    sensor: str
    what: str


class Asked(Event):
    """Does a sensor see it, too?"""

    case: str
    what: str


class Seen(Event):
    """What a sensor sees."""

    case: str
    sensor: str
    probability: float
    age_s: float


class Exposed(Event):
    """People breathe it: so many readings were over the limit."""

    place: str
    """District and pollutant: g2d3/co."""
    readings: int = 1


# ---------------------------------------------------------------------- between a district and its desk


class Confirmed(Event):
    """A district is sure."""

    incident: str
    what: str
    sensor: str
    confidence: float
    reading: float
    severity: int
    since_s: float


class WentCalm(Event):
    """No sensor of a case is suspicious any more."""

    incident: str
    what: str
    sensor: str


# ---------------------------------------------------------------------- the ledger


class Location(Struct, frozen=True):
    """Degrees."""

    lat: float
    lon: float


class Payload(Struct, frozen=True):
    """Where, and how strong: a probability, no raw value."""

    location: Location
    reading: float


class Incident(Entry, name="city.Incident"):
    """What is in the ledger. The first six fields are the article's; its `type` is `kind` here, for a message's `type`
    is its class. What becomes of an incident is an entry, too, with an id that anybody who proposes it makes alike, so
    that it is there once."""

    incident_id: str
    timestamp: str
    kind: str
    source_node: str
    confidence: float
    payload: Payload
    stage: str = "opened"
    """opened, escalated, acknowledged, notified, cleared; joined: a gateway has read all that is before it."""
    of: str = ""
    """The incident that this is about; empty for the first entry of one."""
    severity: int = 0
    by: str = ""
    """Who has acknowledged; the gateway of every other stage."""
    since_s: float = 0.0
    """When the first sensor was sure."""


incidents = Ledger("incidents", Incident, to=[f"Desk/g{number}" for number in range(1, 6)])


class OpenDesk(Command):
    """A gateway begins, or begins again."""

    gateways: int


class OpenDistrict(Command):
    """This is the city that a district is part of."""

    city: City


class Acknowledge(Command):
    """A responder takes an incident."""

    incident: str
    by: str


# ---------------------------------------------------------------------- what is done


class Sound(Action):
    """The sirens and fans of a district: at once, and without anybody else."""

    district: str
    what: str
    incident: str


class Notify(Action):
    """Somebody outside has to know. `mark` is the same at every repetition, whoever sends it."""

    mark: str
    incident: str
    stage: str
    severity: int
    text: str
    mail: bool


class Announced(Event, keep=transient, category="alert"):
    """On the local broker, for whoever listens there: `incident/<type>`."""

    incident: str
    kind: str
    severity: int
