"""A ledger of users' own on one node: outcomes, subscribers, restarts, faults of the ledger, retention, reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stigmergy import Agent, Effects, Entered, Entry, Event, Events, Fleet, Ledger, Live, Proposed, decide, react
from stigmergy.base.errors import ConfigError, DefinitionError, LedgerUnavailable, LedgerUnknown
from stigmergy.claims.memory_ledger import MemoryLedger, forget_ledger, memory_ledger
from stigmergy.control.metrics import NodeMetrics
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.ledgers import service
from stigmergy.testing import given
from tests.ledgers.incident_desk import Desk, Incident, Noted, Report, Sensor, Suspected, city, incidents

WITHIN_S = 240.0
PEER = Ed25519Signer(b"p" * 32).public_key.hex()


async def wait_until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.01)


def outcomes(live: Live, sensor: str = "Sensor/1") -> tuple[tuple[str, int, bool, str], ...]:
    return live.query(sensor, Sensor).outcomes


def seen(live: Live) -> tuple[tuple[str, int], ...]:
    return live.query("Desk/main", Desk).seen if "Desk/main" in live.agents() else ()


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where a ledger is: in memory, or in a file."""
    url = f"memory:{tmp_path}" if request.param == "memory" else f"sqlite:{tmp_path}/ledger.db"
    yield url
    forget_ledger(f"{tmp_path}.incidents")


def run(folder: Path, place: str, name: str = "node", fleet: Fleet | None = None, **options: Any) -> Any:
    return (fleet or city()).running(journal=f"sqlite:{folder}/{name}.db", ledger=place, **options)


async def test_each_incident_is_entered_once_and_its_proposers_hear_of_it(tmp_path: Path, place: str) -> None:
    async with run(tmp_path, place) as live:
        for number in range(3):
            await live.send("Sensor/1", Report(incident=f"I-{number}"))
        await wait_until(lambda: len(outcomes(live)) == 3)
        await live.send("Sensor/2", Report(incident="I-1"))
        await wait_until(lambda: outcomes(live, "Sensor/2"))
        await wait_until(lambda: len(seen(live)) == 3)
        assert outcomes(live) == (("I-0", 1, False, ""), ("I-1", 2, False, ""), ("I-2", 3, False, ""))
        assert outcomes(live, "Sensor/2") == (("I-1", 2, True, ""),)
    async with run(tmp_path, place) as live:
        await live.send("Sensor/2", Report(incident="I-9"))
        await wait_until(lambda: len(seen(live)) == 4)
        assert seen(live) == (("I-0", 1), ("I-1", 2), ("I-2", 3), ("I-9", 4)), "nothing comes twice after a restart"
        assert not live.dead_letters()


class Careless(Agent):
    """Proposes, and has no handler for what becomes of it."""

    @decide
    def report(self, command: Report) -> Events:
        yield Suspected(command.incident, command.gas)

    @react
    def suspected(self, event: Suspected) -> Effects:
        yield incidents.propose(Incident(event.incident, event.gas))


async def test_a_proposer_that_does_not_ask_is_not_told(tmp_path: Path, place: str) -> None:
    fleet = Fleet("city", agents=[Careless, Desk], ledgers=[incidents])
    async with run(tmp_path, place, fleet=fleet) as live:
        for number in range(2):
            await live.send("Careless/1", Report(incident=f"I-{number}"))
        await wait_until(lambda: len(seen(live)) == 2 and not live.standing().owed)
        assert not live.dead_letters()


async def test_an_empty_disk_gets_everything_again_and_proposes_nothing_twice(tmp_path: Path, place: str) -> None:
    for name in ("before", "after"):
        async with run(tmp_path, place, name) as live:
            await live.send("Sensor/1", Report(incident="I-0"))
            await wait_until(lambda: outcomes(live) and seen(live))
            assert seen(live) == (("I-0", 1),)
            assert outcomes(live) == (("I-0", 1, name == "after", ""),)


async def test_two_nodes_have_one_order(tmp_path: Path, place: str) -> None:
    async with run(tmp_path, place, "a") as a, run(tmp_path, place, "b") as b:
        for number in range(20):
            await (a, b)[number % 2].send("Sensor/1", Report(incident=f"I-{number // 2}"))
        await wait_until(lambda: len(outcomes(a)) == len(outcomes(b)) == len(seen(a)) == len(seen(b)) == 10)
        assert seen(a) == seen(b)
        positions = dict(seen(a))
        firsts = [one[0] for one in (*outcomes(a), *outcomes(b)) if not one[2]]
        assert sorted(firsts) == sorted(positions), "of each id exactly one is told that it is the entry"
        assert all(positions[id] == position for id, position, *_ in (*outcomes(a), *outcomes(b)))


class Doubtful(MemoryLedger):
    """Every other append is written, and its writer does not hear so; and then it is away for some calls."""

    calls = 0

    async def append(self, entries: Sequence[bytes]) -> int:
        self.calls += 1
        if self.calls % 4 == 3:
            raise LedgerUnavailable("away")
        first = await super().append(entries)
        if self.calls % 2:
            raise LedgerUnknown("no answer came")
        return first


@asynccontextmanager
async def on_log(monkeypatch: pytest.MonkeyPatch, folder: Path, log: Any, fleet: Fleet, name: str = "node") -> Any:
    """A node whose ledger is this connection."""
    monkeypatch.setattr("stigmergy.app.fleet.open_ledgers", lambda *_: {"incidents": log})
    async with fleet.running(journal=f"sqlite:{folder}/{name}.db", ledger="memory:unused") as live:
        yield live


async def test_appends_without_an_answer_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = memory_ledger(str(tmp_path), "city.incidents")
    async with on_log(monkeypatch, tmp_path, Doubtful(store), city()) as live:
        for number in range(6):
            await live.send("Sensor/1", Report(incident=f"I-{number}"))
        await wait_until(lambda: len(outcomes(live)) == len(seen(live)) == 6)
        assert [incident for incident, _ in seen(live)] == [f"I-{number}" for number in range(6)]
        assert not any(duplicate for _, _, duplicate, _ in outcomes(live)), "a repetition of one's own is no duplicate"
        assert live.replication is not None
        (status,) = live.replication.standing().ledgers
        assert status.entries == 6


class Away(MemoryLedger):
    """Cannot be written to."""

    async def append(self, entries: Sequence[bytes]) -> int:
        raise LedgerUnavailable("no majority")


async def test_without_the_ledger_a_proposal_waits_or_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = memory_ledger(str(tmp_path), "city.incidents")
    async with on_log(monkeypatch, tmp_path, Away(store), city()) as live:
        await live.send("Sensor/1", Report(incident="patient"))
        await live.send("Sensor/2", Report(incident="hasty", within_s=0.1))
        await wait_until(lambda: outcomes(live, "Sensor/2"))
        ((incident, position, _, reason),) = outcomes(live, "Sensor/2")
        assert (incident, position) == ("hasty", 0)
        assert "given up: no majority" in reason
        assert not outcomes(live)
    async with on_log(monkeypatch, tmp_path, MemoryLedger(store), city()) as live:
        await wait_until(lambda: outcomes(live))
        assert outcomes(live) == (("patient", 1, False, ""),), "it was owed in the log"


class Silent(MemoryLedger):
    """As over a link that was cut: nobody answers, and nobody says why, until `linked`."""

    linked: asyncio.Event

    async def append(self, entries: Sequence[bytes]) -> int:
        await self.linked.wait()
        return await super().append(entries)


async def test_a_ledger_that_is_silent_is_named_and_what_waits_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = Silent(memory_ledger(str(tmp_path), "city.incidents"))
    log.linked = asyncio.Event()
    async with on_log(monkeypatch, tmp_path, log, city()) as live:
        await live.send("Sensor/1", Report(incident="I-0"))
        await live.send("Sensor/2", Report(incident="I-0"))
        assert live.replication is not None
        await wait_until(lambda: live.replication.standing().ledgers[0].why)
        (status,) = live.replication.standing().ledgers
        assert (status.ledger, status.waiting) == ("incidents", 2)
        assert status.why.startswith("no answer for ")
        assert figures(live) == {"waiting": 2, "told": 0, "behind": 0, "entered": 0, "duplicate": 0, "refused": 0}
        log.linked.set()
        await wait_until(lambda: outcomes(live) and outcomes(live, "Sensor/2") and seen(live))
        assert figures(live) == {"waiting": 0, "told": 1, "behind": 0, "entered": 1, "duplicate": 1, "refused": 0}
        lags = {one.metric: one for one in NodeMetrics(live).collect().histograms}["stigmergy_proposal_seconds"]
        assert (lags.count, lags.labels) == (2, {"ledger": "incidents"})
        assert lags.sum > service.SLOW_NS, "the first has waited until the link was there again"


def figures(live: Live) -> dict[str, float]:
    """What is measured of ledgers, by the ends of names and by outcomes."""
    found = {}
    for one in NodeMetrics(live).collect().samples:
        if one.metric.startswith(("stigmergy_proposals_", "stigmergy_entries_")):
            assert one.labels["ledger"] == "incidents"
            last = one.metric.removesuffix("_total").rpartition("_")[2]
            found[one.labels.get("outcome", last)] = one.value
    return found


async def test_a_node_that_is_not_listed_may_not_write(tmp_path: Path, place: str) -> None:
    async with run(tmp_path, place, "listed", peers=[PEER]) as live:
        await live.send("Sensor/1", Report(incident="I-0"))
        await wait_until(lambda: outcomes(live))
    async with run(tmp_path, place, "stranger") as live:
        await live.send("Sensor/1", Report(incident="I-0"))
        await live.send("Sensor/1", Report(incident="I-1"))
        await wait_until(lambda: len(outcomes(live)) == 2 and seen(live))
        assert outcomes(live)[0][1:3] == (2, True), "it reads"
        assert "is not among the 2 that may write" in outcomes(live)[1][3]
        assert seen(live) == (("I-0", 2),)
    async with run(tmp_path, place, "wary", peers=[PEER]) as live:
        await wait_until(live.troubles)
        assert "a key that this node does not trust" in str(live.troubles()[0])


async def test_subscribers_far_behind_a_cut_are_told_what_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setattr(service, "CHECKPOINT_COUNT", 25)
    monkeypatch.setattr(service, "CHECKPOINT_STAGGER_S", 0.0)
    monkeypatch.setattr("stigmergy.agents.ledgers.KEEP_COUNT_MIN", 1)
    fleet = city(ledger=Ledger("incidents", Incident, to="Desk/main", keep=20))
    async with run(tmp_path, place, "writer", fleet) as live, run(tmp_path, place, "away", fleet) as away:
        await live.send("Sensor/1", Report(incident="first"))
        await wait_until(lambda: seen(live) and seen(away))
        assert away.replication is not None
        await away.replication.stop()
        for number in range(80):
            await live.send("Sensor/1", Report(incident=f"I-{number}"))
        await wait_until(lambda: len(outcomes(live)) == 81)
        assert live.replication is not None
        assert live.replication.entries is not None
        follower = live.replication.entries.services["incidents"].follower
        await wait_until(lambda: follower.fold.first > 20)
    async with run(tmp_path, place, "away", fleet) as away:
        await away.send("Sensor/2", Report(incident="first"))
        await away.send("Sensor/2", Report(incident="last"))
        await wait_until(lambda: seen(away)[-1][0] == "last")
        found = seen(away)
        assert found[0] == ("first", 1)
        assert found[1][1] >= follower.fold.first > 20, "it goes on where the ledger begins"
        assert len(found) == len({incident for incident, _ in found})
        assert outcomes(away, "Sensor/2")[0][1:3] == (1, True), "ids outlive what was cut"
        skipped = [one for one in away.host.shards.first.state.marks.all() if one.source.startswith("ledger/")]
        assert [mark.sequence for mark in skipped] == [found[-1][1]]
        read = await away.ledger(fleet.ledgers["incidents"]).entries(after=0)
        assert read[0].position >= follower.fold.first


async def test_entries_are_read_behind_a_position_or_the_latest(tmp_path: Path, place: str) -> None:
    async with run(tmp_path, place) as live:
        for number in range(5):  # one after the other, as proposals that are under way together have no order
            await live.send("Sensor/1", Report(incident=f"I-{number % 4}", gas="no2"))
            known = number + 1
            await wait_until(lambda: len(outcomes(live)) == known)  # noqa: B023
        reader = live.ledger(incidents)
        found = await reader.entries(after=1, fresh=True)
        assert [one.entry for one in found] == [Incident(f"I-{number}", "no2") for number in (1, 2, 3)]
        assert isinstance(found[0], Entered)
        assert (found[0].proposer, found[0].ledger, len(found[0].writer)) == ("Sensor/1", "incidents", 64)
        assert [one.entry.incident for one in await reader.entries(latest=2)] == ["I-2", "I-3"]
        assert [one.position for one in await reader.entries(after=1, limit=1)] == [2]
        with pytest.raises(ConfigError, match="at most 1000"):
            await reader.entries(latest=0)
        with pytest.raises(ConfigError, match=r"no Ledger\('other', Incident\) here"):
            live.ledger(Ledger("other", Incident))


async def test_a_subscriber_that_comes_later_gets_everything(tmp_path: Path, place: str) -> None:
    fleet = city(ledger=Ledger("incidents", Incident))
    async with run(tmp_path, place, fleet=fleet) as live:
        for number in range(3):
            await live.send("Sensor/1", Report(incident=f"I-{number}"))
        await wait_until(lambda: len(outcomes(live)) == 3)
        assert "Desk/main" not in live.agents()
        await live.observe("Desk/main", Noted("by hand", 0))
        await wait_until(lambda: len(seen(live)) == 4)
        assert seen(live) == (("by hand", 0), ("I-0", 1), ("I-1", 2), ("I-2", 3))


async def test_a_log_that_has_lost_its_end_is_no_longer_followed(tmp_path: Path, place: str) -> None:
    async with run(tmp_path, place) as live:
        await live.send("Sensor/1", Report(incident="I-0"))
        await wait_until(lambda: seen(live))
    if place.startswith("memory:"):
        forget_ledger(f"{tmp_path}.incidents")
        async with run(tmp_path, place) as live:
            await wait_until(live.troubles)
            assert "lost its end" in str(live.troubles()[0])
            assert live.troubles()[0].code == "entries-refused"


def test_given_sees_proposals_and_takes_entries() -> None:
    given(Sensor).when(Report(incident="I-1")).then(
        Suspected("I-1", "co", None), incidents.propose(Incident("I-1", "co"))
    )
    given(Desk).when(Entered(Incident("I-1", "co"), 7)).then(Noted("I-1", 7)).state(seen=(("I-1", 7),))
    given(Sensor).when(Proposed[Incident](id="I-1", position=3)).state(outcomes=(("I-1", 3, False, ""),))


class Large(Entry):
    id: str
    text: str = ""
    number: int = 0


class Other(Entry):
    id: str


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Ledger("In cidents", Incident), "small letters"),
        (lambda: Ledger("incidents", Entry), "a subclass of Entry"),
        (lambda: Ledger("incidents", Large, key="number"), "name a field that is a str"),
        (lambda: Ledger("incidents", Incident, keep=1), "give 1000 entries or more"),
        (lambda: Ledger("incidents", Incident, ids=0), "ids=0"),
        (lambda: city(ledger=Ledger("incidents", Incident, to="Sensor/1")), "no agent of fleet 'city' with a handler"),
        (lambda: Fleet("city", agents=[Sensor, Desk], ledgers=[incidents, incidents]), "two ledgers"),
    ],
)
def test_a_declaration_that_cannot_be(make: Callable[[], object], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        make()


def test_an_entry_that_cannot_be_is_refused_where_it_is_proposed() -> None:
    ledger = Ledger("large", Large)
    for entry, why in ((Large(""), "an id is a text"), (Large("a", "x" * 2_400), "at most; put a Blob")):
        with pytest.raises(ValueError, match=why):
            ledger.propose(entry)
    with pytest.raises(ValueError, match="within_s=0"):
        ledger.propose(Large("a"), within_s=0)
    with pytest.raises(TypeError, match="Other is none of its entries"):
        ledger.propose(Other("a"))  # type: ignore[arg-type]


async def test_a_fleet_with_a_ledger_needs_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="incidents is a ledger of it"):
        async with city().running(journal=f"sqlite:{tmp_path}/node.db"):
            pass


async def test_what_is_proposed_to_a_ledger_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    async with Fleet("city", agents=[Sensor, Desk]).running(journal=f"sqlite:{tmp_path}/node.db") as live:
        await live.send("Sensor/1", Report(incident="I-0"))
        await wait_until(lambda: outcomes(live))
        assert "this host has no ledger" in outcomes(live)[0][3]


class Counted(Event):
    number: int


class Meter(Agent):
    """Would propose, and is to be compiled."""

    number: int = 0

    @react
    def counted(self, event: Counted) -> Effects:
        yield incidents.propose(Incident("I-1"))


def test_a_compiled_agent_cannot_propose() -> None:
    with pytest.raises(DefinitionError, match=r"incidents\.propose.* is no effect that is made in place"):
        Fleet("city", agents=[Meter], compiled=True, ledgers=[incidents])
