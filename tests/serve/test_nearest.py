"""The events nearest to a moment, of four shards in one order: on and back again meets the same events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import stigmergy as st
from stigmergy.audit.history import read_moment
from stigmergy.base.errors import ConfigError
from stigmergy.serve import nearest
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.events import EventHub, StreamFilter
from stigmergy.serve.nearest import NearestEvent, NearestEvents, read_place

EVERYTHING = StreamFilter()


class Rang(st.Event):
    number: int


class Waited(st.Event, keep=st.within(seconds=1)):
    """Is kept later than it happens."""

    number: int


class Bell(st.Agent):
    number: int = 0

    @st.evolve
    def rang(self, event: Rang) -> None:
        self.number = event.number

    @st.evolve
    def waited(self, event: Waited) -> None:
        self.number = event.number


def key_of(event: NearestEvent) -> str:
    return f"{event.shard}:{event.position}.{event.index}"


@asynccontextmanager
async def bells(folder: Path) -> AsyncIterator[EventHub]:
    """A running node of four shards, on which eight bells rang in turns, a third of it kept late."""
    fleet = st.Fleet("bells", agents=[Bell], shards=4)
    running = fleet.running(journal="memory:", key=folder / "bells.key")
    async with asyncio.timeout(240), running as live:
        for number in range(40):
            late = asyncio.ensure_future(live.observe(f"Bell/{number % 8}", Waited(number=number)))
            await live.observe(f"Bell/{(number + 3) % 8}", Rang(number=number))
            await live.observe(f"Bell/{number % 8}", Rang(number=number))
            await late
        hub = EventHub(NodeAsker(running.service(live, "", lambda: None)), (None,))
        yield hub
        await hub.close()


async def walk(hub: EventHub, wanted: StreamFilter, start: NearestEvent | None, *, back: bool) -> list[NearestEvent]:
    """Event by event, to the end."""
    found: list[NearestEvent] = []
    place = None if start is None else read_place(key_of(start))
    while True:
        asked = 0 if place is None and not back else place
        one = await NearestEvents(hub, wanted).find(asked, 1, back=back)
        if not one:
            return found
        found += one
        place = read_place(key_of(one[0]))


async def test_steps_on_and_back_meet_every_event_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "WINDOW_COMMITS", 2)
    monkeypatch.setattr(nearest, "PAGE_COUNT", 3)  # smaller than what a shard has
    async with bells(tmp_path) as hub:
        on = await walk(hub, EVERYTHING, None, back=False)
        keys = [key_of(one) for one in on]
        assert len(set(keys)) == len(keys) == 120
        assert {one.shard for one in on} == {0, 1, 2, 3}
        kept = [one.kept for one in on]
        assert kept == sorted(kept)
        assert any(one.time < one.kept for one in on), "some happened before their commit"
        back = await walk(hub, EVERYTHING, None, back=True)
        assert [key_of(one) for one in back] == keys[::-1]
        # From the middle, by an event and by its moment.
        middle = await NearestEvents(hub, EVERYTHING).find(read_place(keys[40]), 7, back=True)
        assert [key_of(one) for one in middle] == keys[33:40]
        of_agent = StreamFilter(agents=("Bell/5",))
        mine = [key_of(one) for one in on if one.agent == "Bell/5"]
        assert [key_of(one) for one in await walk(hub, of_agent, None, back=True)] == mine[::-1]
        assert [key_of(one) for one in await walk(hub, of_agent, on[40], back=False)] == [
            one for one in mine if keys.index(one) > 40
        ]


async def test_a_time_divides_what_was_kept_by_then_from_what_came_later(tmp_path: Path) -> None:
    async with bells(tmp_path) as hub:
        on = await NearestEvents(hub, EVERYTHING).find(0, 1000, back=False)
        for moment in list(dict.fromkeys(one.kept for one in on))[::9]:
            time_ns = read_moment(moment).time_ns
            behind = await NearestEvents(hub, EVERYTHING).find(time_ns, 1000, back=False)
            before = await NearestEvents(hub, EVERYTHING).find(time_ns, 1000, back=True)
            assert behind == [one for one in on if one.kept > moment]
            assert before == [one for one in on if one.kept < moment]


async def test_places_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    async with bells(tmp_path) as hub:
        for text in ("0", "0:1", "x:1.1", "0:1.-1"):
            with pytest.raises(ConfigError, match=r"such as 0:41\.2"):
                read_place(text)
        for text, why in (("9:1.0", "is none of this fleet"), ("0:1.999", r"has no event 1\.999")):
            with pytest.raises(ConfigError, match=why):
                await NearestEvents(hub, EVERYTHING).find(read_place(text), 1, back=False)
        with pytest.raises(ConfigError, match="give 1 to 1000"):
            await NearestEvents(hub, EVERYTHING).find(None, 1001, back=True)
