"""The desk of a gateway: sounds alarms at once, proposes incidents to the ledger, and follows what all have entered.

- An alarm is local and waits for nobody. The ledger is asked beside it, and may be away for hours.
- One incident for one leak: a confirmed case joins an open incident of its kind nearby, or one that is proposed.
- A desk without a past (a new disk) first enters `joined`, and proposes nothing until it reads that: then it knows all
  incidents that it had proposed before. Its alarms do not wait.
- Escalation, all-clear and who was notified are entries as well. Their ids follow from the incident, so the next
  gateways in the ring may enter them, too, when the first one does not: they are there once.
- Exposure counters are shared by all desks and merge by gossip.
"""

from __future__ import annotations

from msgspec import Struct, structs

from apps.city.messages import (
    Acknowledge,
    Announced,
    Confirmed,
    Exposed,
    Incident,
    Location,
    Notify,
    OpenDesk,
    Payload,
    Sound,
    WentCalm,
    incidents,
)
from apps.city.plan import are_near, degrees_of, district_of, gateway_of, place_of
from apps.city.rules import (
    BACKUP_S,
    BACKUPS,
    CLEAR_S,
    ESCALATE_S,
    KINDS,
    MAIL_SEVERITY,
    SEVERITY_MAX,
    WHATS,
    same,
    timestamp_of,
)
from stigmergy import (
    Agent,
    Done,
    Effects,
    Entered,
    Event,
    Events,
    GCounter,
    ORMap,
    Publish,
    Shared,
    WakeMe,
    Woken,
    decide,
    evolve,
    react,
    reject,
    shared,
)

KNOWN_MAX = 1_000
"""Incidents that a desk remembers; of more the oldest that are cleared go."""
NEW_DISK_CLEAR_S = 90.0
"""A desk with a new disk gives sensors so long to remind it of an incident; then it is calm."""
WAITING_MAX = 100
"""Confirmed cases of a desk that has not joined yet; the oldest goes, and its sensors remind of it."""


class Known(Struct, frozen=True):
    """What is known of an incident that is in the ledger, or was proposed."""

    entry: Incident
    position: int = 0
    """In the ledger; 0 until it is there."""
    severity: int = 0
    acknowledged: bool = False
    notified: int = 0
    """The severity that somebody was last notified of."""
    cleared: bool = False
    calm_s: float = 0.0
    """Since when its sensors are calm; 0: they are not."""
    clear_s: float = CLEAR_S
    """So long they have to be."""
    clearing: bool = False
    """The all-clear is proposed: what is suspected from now on is another incident."""


class DeskOpened(Event):
    """The desk's disk is new."""

    gateways: int
    at_s: float


class Joined(Event):
    """One more case of an incident that is known."""

    incident: str


class Held(Event):
    """A case that is proposed when the desk knows what there is."""

    case: Confirmed


class Raised(Event):
    """An incident that is to be in the ledger."""

    entry: Incident


class Decided(Event):
    """Something about an incident that is to be in the ledger."""

    entry: Incident


class AlarmOn(Event):
    """The district is warned."""

    incident: str
    what: str
    district: str


class IncidentCalm(Event):
    """All sensors of an incident are calm, or do not remind a new disk of it."""

    incident: str
    clear_s: float


class HeldCalm(Event):
    """The sensors of a case have calmed before it could be proposed."""

    incident: str


class NoticeDue(Event):
    """Nobody has notified anybody of an incident so far."""

    incident: str


class DeskJoined(Event):
    """The desk knows all that was in the ledger before it began."""


class Desk(Agent):
    """One for each gateway."""

    exposure: Shared[ORMap[str, GCounter]] = shared(by="city")
    gateways: int = 0
    opened_s: float = 0.0
    has_joined: bool = False
    waiting: tuple[Confirmed, ...] = ()
    calm_waiting: tuple[str, ...] = ()
    """Of these, incidents that are calm again."""
    known: tuple[Known, ...] = ()

    # ------------------------------------------------------------------ what it knows

    def find(self, incident: str) -> Known | None:
        """An incident by its id."""
        return next((one for one in self.known if one.entry.incident_id == incident), None)

    def find_near(self, sensor: str, what: str) -> Known | None:
        """The incident that a sensor sees: of this kind, not cleared, nearby."""
        return next(
            (
                one
                for one in self.known
                if not (one.cleared or one.clearing)
                and same(WHATS[one.entry.kind], what)
                and are_near(one.entry.source_node, sensor)
            ),
            None,
        )

    def rank(self, incident: Incident) -> int:
        """0 for the gateway whose district it is, 1 for the next one in the ring."""
        home = int(gateway_of(district_of(incident.source_node))[1:])
        return (int(self.id[1:]) - home) % max(self.gateways, 1)

    # ------------------------------------------------------------------ beginning

    @decide
    def open(self, command: OpenDesk) -> Events:
        if not self.gateways:
            yield DeskOpened(gateways=command.gateways, at_s=self.now)

    @evolve
    def opened(self, event: DeskOpened) -> None:
        self.gateways, self.opened_s = event.gateways, event.at_s

    @react
    def join(self, event: DeskOpened) -> Effects:
        where = Payload(location=Location(*degrees_of((0.0, 0.0))), reading=0.0)
        yield incidents.propose(
            Incident(
                incident_id=self.joined_id,
                timestamp=timestamp_of(event.at_s),
                kind="joined",
                source_node=self.id,
                confidence=1.0,
                payload=where,
                stage="joined",
                by=self.id,
            )
        )

    @property
    def joined_id(self) -> str:
        """The id of the entry that tells this desk where it begins: another one with every new disk."""
        return f"joined:{self.id}:{self.opened_s:.6f}"

    # ------------------------------------------------------------------ cases become incidents

    @decide
    def confirmed(self, case: Confirmed) -> Events:
        near = self.find(case.incident) or self.find_near(case.sensor, case.what)
        if near is not None:
            yield Joined(incident=near.entry.incident_id)
            return
        held = [one for one in self.waiting if same(one.what, case.what) and are_near(one.sensor, case.sensor)]
        if held:
            if held[0].incident in self.calm_waiting:
                yield Held(case=held[0])
            return
        yield AlarmOn(incident=case.incident, what=case.what, district=district_of(case.sensor))
        yield Raised(entry=self.entry_of(case)) if self.has_joined else Held(case=case)

    def entry_of(self, case: Confirmed) -> Incident:
        """What is proposed of a case."""
        where = Payload(location=Location(*degrees_of(place_of(case.sensor))), reading=case.reading)
        return Incident(
            incident_id=case.incident,
            timestamp=timestamp_of(self.now),
            kind=KINDS[case.what],
            source_node=case.sensor,
            confidence=case.confidence,
            payload=where,
            severity=case.severity,
            by=self.id,
            since_s=case.since_s,
        )

    @evolve
    def holds(self, event: Held) -> None:
        others = tuple(one for one in self.waiting if one.incident != event.case.incident)
        self.waiting = (*others, event.case)[-WAITING_MAX:]
        self.calm_waiting = tuple(one for one in self.calm_waiting if one != event.case.incident)

    @evolve
    def raised(self, event: Raised) -> None:
        self.put(Known(event.entry, severity=event.entry.severity))

    @evolve
    def joined_by(self, event: Joined) -> None:
        self.change(event.incident, calm_s=0.0)

    @react
    def warn(self, event: AlarmOn) -> Effects:
        yield Sound(district=event.district, what=event.what, incident=event.incident)

    @react
    def propose(self, event: Raised) -> Effects:
        entry = event.entry
        yield incidents.propose(entry)
        announced = Announced(incident=entry.incident_id, kind=entry.kind, severity=entry.severity)
        yield Publish(topic=f"incident/{entry.kind}", event=announced)

    @react
    def propose_stage(self, event: Decided) -> Effects:
        yield incidents.propose(event.entry)

    @evolve
    def clearing(self, event: Decided) -> None:
        if event.entry.stage == "cleared":
            self.change(event.entry.of, clearing=True)

    # ------------------------------------------------------------------ what the ledger says

    @evolve
    def entered(self, event: Entered[Incident]) -> None:
        entry = event.entry
        match entry.stage:
            case "joined":
                self.has_joined = self.has_joined or entry.incident_id == self.joined_id
            case "opened":
                old = self.find(entry.incident_id)
                known = Known(entry) if old is None else old
                self.put(structs.replace(known, entry=entry, position=event.position, severity=entry.severity))
            case "escalated":
                self.change(entry.of, severity=entry.severity)
            case "acknowledged":
                self.change(entry.of, acknowledged=True)
            case "notified":
                self.change(entry.of, notified=entry.severity)
            case "cleared":
                self.change(entry.of, cleared=True)
            case _:
                pass

    def put(self, known: Known) -> None:
        """For evolve only: keeps the order of the first time."""
        name = known.entry.incident_id
        if self.find(name) is not None:
            self.known = tuple(known if one.entry.incident_id == name else one for one in self.known)
            return
        kept = self.known
        if len(kept) >= KNOWN_MAX:
            oldest = next((one for one in kept if one.cleared), kept[0])
            kept = tuple(one for one in kept if one is not oldest)
        self.known = (*kept, known)

    def change(self, incident: str, **changes: object) -> None:
        """For evolve only."""
        self.known = tuple(
            structs.replace(one, **changes) if one.entry.incident_id == incident else one for one in self.known
        )

    @decide
    def follow(self, event: Entered[Incident]) -> Events:
        """What was held back is proposed now, unless it is there already."""
        yield event
        if event.entry.incident_id != self.joined_id:
            return
        yield DeskJoined()
        raised: list[Confirmed] = []
        for case in self.waiting:
            known = self.find_near(case.sensor, case.what)
            if known is not None:
                yield Joined(incident=known.entry.incident_id)
            elif not any(same(one.what, case.what) and are_near(one.sensor, case.sensor) for one in raised):
                raised.append(case)
                yield Raised(entry=self.entry_of(case))
                if case.incident in self.calm_waiting:
                    yield IncidentCalm(incident=case.incident, clear_s=CLEAR_S)
        for known in self.known:
            if known.position and not known.cleared and self.rank(known.entry) == 0:
                yield IncidentCalm(incident=known.entry.incident_id, clear_s=NEW_DISK_CLEAR_S)

    @evolve
    def desk_joined(self, event: DeskJoined) -> None:
        self.waiting, self.calm_waiting = (), ()

    @react
    def catch_up(self, event: DeskJoined) -> Effects:
        """What is open: this desk may have been the one to act on it."""
        for known in self.known:
            if known.position and not known.cleared and self.rank(known.entry) <= BACKUPS:
                yield from self.act_on(known.entry.incident_id, self.rank(known.entry))

    @react
    def act(self, event: Entered[Incident]) -> Effects:
        """Whoever is first in the ring acts; the next ones look later whether it has."""
        entry, rank = event.entry, self.rank(event.entry)
        if entry.stage == "joined" or not self.has_joined:
            return
        if entry.stage in ("opened", "escalated") and rank <= BACKUPS:
            yield from self.act_on(entry.of or entry.incident_id, rank)
        known = self.find(entry.of or entry.incident_id)
        if known is not None and known.calm_s and not known.cleared:
            # It was calm before it was in the ledger, or before somebody had acknowledged it.
            yield WakeMe(name=f"clear:{known.entry.incident_id}", after_s=known.clear_s)

    def act_on(self, incident: str, rank: int) -> Effects:
        """Notifies, and looks later whether somebody has acknowledged."""
        known = self.find(incident)
        if known is None or known.cleared:
            return
        if rank == 0 and known.notified < known.severity:
            yield self.notice_of(known)
        else:
            yield WakeMe(name=f"notify:{incident}", after_s=BACKUP_S * rank)
        if known.severity in ESCALATE_S:
            yield WakeMe(name=f"escalate:{incident}", after_s=ESCALATE_S[known.severity] + BACKUP_S * rank)

    def notice_of(self, known: Known) -> Notify:
        """For whoever has to know."""
        entry, severity = known.entry, known.severity
        where = f"{entry.payload.location.lat}, {entry.payload.location.lon}"
        return Notify(
            mark=f"{entry.incident_id}:{severity}",
            incident=entry.incident_id,
            stage="opened" if severity == entry.severity else "escalated",
            severity=severity,
            text=f"{entry.kind} at {where} ({district_of(entry.source_node)}), severity {severity}",
            mail=severity >= MAIL_SEVERITY,
        )

    @decide
    def woken(self, woken: Woken) -> Events:
        what, _, incident = woken.name.partition(":")
        known = self.find(incident)
        if known is None or known.cleared or not known.position:
            return
        if what == "notify" and known.notified < known.severity:
            yield NoticeDue(incident=incident)
        elif what == "escalate" and not known.acknowledged and known.severity < SEVERITY_MAX:
            yield self.about(known, "escalated", severity=known.severity + 1)
        elif what == "clear" and known.calm_s and _may_clear(known):
            # The timer was set when they became calm, and anew each time: by a clock that cannot jump, unlike `now`.
            yield self.about(known, "cleared")

    def about(self, known: Known, stage: str, severity: int = 0, by: str = "") -> Decided:
        """An entry about an incident. Whoever proposes it gives it the same id."""
        level = severity or known.severity
        name = f"{known.entry.incident_id}:{stage}"
        return Decided(
            entry=structs.replace(
                known.entry,
                incident_id=f"{name}-{level}" if stage in ("escalated", "notified") else name,
                timestamp=timestamp_of(self.now),
                stage=stage,
                of=known.entry.incident_id,
                severity=level,
                by=by or self.id,
            )
        )

    @react
    def notify(self, event: NoticeDue) -> Effects:
        known = self.find(event.incident)
        if known is not None:
            yield self.notice_of(known)

    @decide
    def notified(self, done: Done[Notify]) -> Events:
        yield done
        known = self.find(done.action.incident)
        if known is not None and known.notified < done.action.severity:
            yield self.about(known, "notified", severity=done.action.severity)

    # ------------------------------------------------------------------ responders, and the end

    @decide
    def acknowledge(self, command: Acknowledge) -> Events:
        known = self.find(command.incident)
        if known is None or not known.position:
            reject(f"{self.id} knows no incident {command.incident}; ask again when the ledger is reachable")
        if not known.acknowledged:
            yield self.about(known, "acknowledged", by=command.by)

    @decide
    def went_calm(self, event: WentCalm) -> Events:
        known = self.find(event.incident) or self.find_near(event.sensor, event.what)
        if known is not None and not known.cleared:
            yield IncidentCalm(incident=known.entry.incident_id, clear_s=CLEAR_S)
        elif any(one.incident == event.incident for one in self.waiting):
            yield HeldCalm(incident=event.incident)

    @evolve
    def calmed_while_held(self, event: HeldCalm) -> None:
        self.calm_waiting = (*self.calm_waiting, event.incident)[-WAITING_MAX:]

    @evolve
    def calmed(self, event: IncidentCalm) -> None:
        self.change(event.incident, calm_s=self.now, clear_s=event.clear_s)

    @react
    def clear_soon(self, event: IncidentCalm) -> Effects:
        yield WakeMe(name=f"clear:{event.incident}", after_s=event.clear_s)

    # ------------------------------------------------------------------ exposure

    @decide
    def exposed(self, event: Exposed) -> Events:
        yield event
        yield self.exposure[event.place].add(event.readings)


def _may_clear(known: Known) -> bool:
    return known.acknowledged or known.severity < 3
