"""A fleet whose agents live by zone: tells, restarts, what is asked and looked up, and a function that was changed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stigmergy import Fleet
from stigmergy.agents.codec import pack_envelope
from stigmergy.app.journals import inspect_journal
from stigmergy.app.keyring import load_signer
from stigmergy.audit.export import Export, Selection
from stigmergy.audit.flight import FlightSelection, make_flight
from stigmergy.audit.history import History, Moment
from stigmergy.audit.listing import EntryFilter, list_log
from stigmergy.audit.replay import JournalReplay
from stigmergy.base.errors import JournalForeign, UnknownKind
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.shard.homes import shard_of
from stigmergy.sim.node import SimNode
from tests.node.counting import Add, Counted, Counter, Land
from tests.node.rig import play

SHARDS = 8


def zone_of(address: str) -> str:
    """Those who are told live in the harbour, all others by the first letter of their name."""
    name = address.partition("/")[2]
    return "harbour" if name.startswith("t") else name[:1]


def declare(shard_by: Callable[[str], str] | None = zone_of) -> Declaration:
    return Declaration("zones", agents=[Counter], shards=SHARDS, shard_by=shard_by)


def test_agents_live_by_zone_and_tell_each_other_over_a_crash() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        for number in range(100, 120):
            await live.send(f"Counter/{'abc'[number % 3]}{number}", Add(number=number))
        await node.lose_power()
        live = await node.start()
        await asyncio.sleep(2.0)
        greeted = [n for target in range(5) for _, n in live.query(f"Counter/t{target}").greeted]
        assert sorted(greeted) == list(range(100, 120))
        homes = {shard.state.shard: sorted(shard.state.agents) for shard in live.host.shards if shard.state.agents}
        assert set(homes[shard_of("harbour", SHARDS)]) >= {f"Counter/t{target}" for target in range(5)}
        for zone in "abc":
            names = [name for name in homes[shard_of(zone, SHARDS)] if name.startswith(f"Counter/{zone}")]
            assert len(names) >= 6, "all of them, and nowhere else"
        assert sum(map(len, homes.values())) == 25

    play(declare(), main)


def test_an_envelope_for_somebody_without_a_home_is_refused_whole_and_the_node_goes_on() -> None:
    def only_a(address: str) -> str:
        return {"a": "first"}[zone_of(address)]

    async def main(node: SimNode) -> None:
        live = await node.start()
        items: list[tuple[str, Any]] = [("Counter/a1", Counted(number=1)), ("Counter/b1", Counted(number=2))]
        with pytest.raises(UnknownKind, match="only_a raised KeyError"):
            await live.deliver(pack_envelope("radio", items, sequence=1))
        with pytest.raises(UnknownKind, match="only_a raised KeyError"):
            await live.send("Counter/b1", Add(number=1))
        await live.deliver(pack_envelope("radio", items[:1], sequence=1))
        assert live.query("Counter/a1").numbers == (1,)

    play(declare(only_a), main)


URLS = ("sqlite:zones.db", "segments:zones")


async def fill(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    async with zoned(zone_of).running(journal=url, key="zones.key") as live:
        for number in range(3):
            await live.send(f"Counter/b{number}", Add(number=number))
            await live.send(f"Counter/c{number}", Add(number=number))


def zoned(shard_by: Callable[[str], str] | None) -> Fleet:
    fleet = Fleet("zones", agents=[Counter], shards=SHARDS, shard_by=shard_by)
    fleet.actuator(Land)(lambda _: None)
    return fleet


@pytest.mark.parametrize("url", URLS)
async def test_a_log_without_its_fleet_is_looked_through_in_all_shards(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path, url, monkeypatch)
    fleet, journal = zoned(zone_of), inspect_journal(url)
    assert journal.identity.shard_by == "zone_of"
    listed = [entry for entry in list_log(journal, EntryFilter(agent="Counter/b1", limit=10)) if entry is not None]
    assert {(entry.agent, entry.shard) for entry in listed} == {("Counter/b1", shard_of("b", SHARDS))}
    exported = [one for one in Export(journal, Selection(agent="Counter/c2")).entries() if one is not None]
    assert {(entry.agent, entry.shard) for entry in exported} == {("Counter/c2", shard_of("c", SHARDS))}
    with pytest.raises(JournalForeign, match="shard_by=zone_of"):
        History(journal, fleet.plans)
    sight = History(journal, fleet.plans, homes=fleet.homes).look("Counter/b1", Moment())
    assert (sight.agent.numbers, sight.shard) == ((1,), shard_of("b", SHARDS))
    replaying = JournalReplay(journal, fleet.plans, fleet.settings.limits, Ed25519Verifier(), homes=fleet.homes)
    assert replaying.run().same
    flight = b"".join(
        make_flight(journal, load_signer(Path("zones.key"), create=False), FlightSelection(agent="Counter/b1"), 1)
    )
    write(Path("one.flight"), flight)
    again = inspect_journal("flight:one.flight")
    assert (again.identity.shard_by, again.identity.fleet) == ("zone_of", "zones")
    assert {
        entry.shard for entry in list_log(again, EntryFilter(agent="Counter/b1", limit=10)) if entry is not None
    } == {shard_of("b", SHARDS)}
    await again.close()
    await journal.close()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def district_of(address: str) -> str:
    return zone_of(address)


def changed(address: str) -> str:
    return zone_of(address) + "!"


changed.__name__ = "zone_of"


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("key", "why"), [(None, "zone_of says where"), (district_of, "now district_of would"), (changed, "as it was")]
)
async def test_a_journal_is_refused_with_another_function_and_with_one_that_was_changed(
    url: str, key: Callable[[str], str] | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path, url, monkeypatch)
    with pytest.raises(JournalForeign, match=why):
        async with zoned(key).running(journal=url, key="zones.key"):
            pass
    async with zoned(zone_of).running(journal=url, key="zones.key") as live:
        assert live.query("Counter/b1").numbers == (1,)


async def test_a_journal_that_was_made_without_a_function_stays_without(tmp_path: Path) -> None:
    url, key = f"sqlite:{tmp_path / 'a.db'}", str(tmp_path / "a.key")
    async with zoned(None).running(journal=url, key=key) as live:
        await live.send("Counter/b1", Add(number=1))
    with pytest.raises(JournalForeign, match="declare the fleet without shard_by"):
        async with zoned(zone_of).running(journal=url, key=key):
            pass
