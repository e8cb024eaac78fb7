"""Reading what was published from a log: from any position, in small portions, nothing twice and nothing missing."""

import asyncio
from pathlib import Path

from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Publish, decide, react
from stigmergy.agents.codec import encode
from stigmergy.bus.history import LogPosition, Published, WatchPosition, read_position, write_position
from stigmergy.node.history import HistoryReader

BYTES_MAX = 300
"""Of a portion: two or three items."""


class Burst(Command):
    first: int
    count: int


class Began(Event):
    first: int
    count: int


class Numbered(Event):
    n: int


class Gun(Agent):
    @decide
    def burst(self, command: Burst) -> Events:
        yield Began(first=command.first, count=command.count)

    @react
    def fire(self, event: Began) -> Effects:
        for n in range(event.first, event.first + event.count):
            yield Publish("shots", Numbered(n=n))
            yield Publish("other", Numbered(n=n))


async def test_a_commit_with_many_publications_is_read_in_portions_and_gone_on_with_anywhere(tmp_path: Path) -> None:
    """A new reader for each portion, as after a lost reply: what was read last says where to go on, inside a commit."""
    fleet = Fleet("range", agents=[Gun], shards=2)
    async with fleet.running(journal=f"sqlite:{tmp_path / 'range'}.db") as live:
        for first in range(0, 60, 20):
            await asyncio.gather(*(live.send(f"Gun/g{n}", Burst(first=first, count=20)) for n in range(3)))
        at: dict[int, LogPosition] = {}
        found: list[Published] = []
        while True:
            reader = HistoryReader(live.host, "Gun/+/shots", after=at)
            portion = await reader.read(0.0, BYTES_MAX)
            await reader.close()
            assert len(portion.items) <= 3
            found += portion.items
            if portion.at == at:
                break
            at = read_position(write_position(WatchPosition({"a": portion.at}))).at["a"]
        assert len(at) == 2, "both shards"
    for n in range(3):
        mine = [one for one in found if one.agent == f"Gun/g{n}"]
        assert [one.body for one in mine] == [_numbered(number) for number in range(60)]
        assert [one.sequence for one in mine] == sorted({one.sequence for one in mine}), "as on the topic"


def _numbered(n: int) -> bytes:
    return encode(Numbered(n=n))
