"""Tells between the shards of different processes, in virtual time: first-in first-out, once, over crashes and cuts."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from rigs.memory_peers import MemoryPeerHub
from stigmergy.agents.codec import encode
from stigmergy.base.errors import DataLost, LinkDown, NotOwned, StaleEpoch, StigmergyError
from stigmergy.control.live import Live
from stigmergy.network import tell_sender as frames
from stigmergy.network import tell_sender as sending
from stigmergy.network.peer_port import PeerChannel
from stigmergy.network.peers import PeerProcesses
from stigmergy.network.tell_sender import PairOpening, PairPosition, PeerRefused, TellBatch, Welcome
from stigmergy.node.host import Host
from stigmergy.shard.homes import shard_of
from stigmergy.shard.outbox import Pending
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.node.counting import Add, Counted, Hello, declare, envelope

SHARDS = 2


class Street:
    """Processes that share a fleet, each with one shard and on a disk of its own."""

    def __init__(self, world: Run, processes: int) -> None:
        self.street = MemoryPeerHub()
        self.processes = processes
        self.nodes: dict[int, SimNode] = {}
        for process in range(1, processes + 1):
            self.nodes[process] = SimNode(
                world,
                lambda _: declare(processes),
                name=f"process {process}",
                part=(process - 1, process - 1),
                attach=partial(self._attach, process),
            )

    def _attach(self, process: int, host: Host) -> PeerProcesses:
        return PeerProcesses(host, self.street.peer_network(process))

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start()

    def owner(self, address: str) -> SimNode:
        return self.nodes[shard_of(address, self.processes) + 1]

    def somebody(self, process: int) -> str:
        return next(f"Counter/{n}" for n in range(50) if self.owner(f"Counter/{n}") is self.nodes[process])

    def target(self, process: int) -> int:
        return next(n for n in range(5) if self.owner(f"Counter/t{n}") is self.nodes[process])

    def live(self, address: str) -> Live:
        live = self.owner(address).live
        assert live is not None
        return live

    async def add(self, address: str, number: int) -> None:
        await self.live(address).send(address, Add(number=number), command_id=str(number))

    def greeted(self, target: str, source: str) -> list[int]:
        return [number for by, number in self.live(target).query(target).greeted if by == source]

    def told(self, source: str, target: int) -> list[int]:
        return [number for number in self.live(source).query(source).numbers if number >= 100 and number % 5 == target]

    @property
    def owed(self) -> int:
        return sum(shard.state.outbox.count for node in self.nodes.values() for shard in node.host.shards)

    async def settle(self, within_s: float = 60.0) -> None:
        for _ in range(int(within_s / 0.05)):
            # What is told within a process is settled when it is stepped, which is before it is on disk.
            if not self.owed and all(node.host.committer.idle for node in self.nodes.values()):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{self.owed} are still owed")


def play(main: Callable[[Street, Run], Awaitable[None]], *, processes: int = SHARDS, seed: int = 1) -> None:
    world = Run(seed, shuffle=True)
    street = Street(world, processes)

    async def scene() -> None:
        await street.start()
        await main(street, world)
        for node in street.nodes.values():
            if node.live is not None:
                await node.stop()

    world.run(scene())
    for node in street.nodes.values():
        assert not node.logbook.findings


def check_told(street: Street, sources: list[str]) -> int:
    """Everybody has heard, from everybody, what was told, in order and once; returns how much that is."""
    count = 0
    for source in sources:
        for target in range(5):
            told = street.told(source, target)
            assert street.greeted(f"Counter/t{target}", source) == told
            count += len(told)
    return count


class TestTells:
    @pytest.mark.parametrize("processes", [3, *(pytest.param(count, marks=pytest.mark.prove) for count in (2, 4))])
    def test_all_arrive_in_order_and_are_settled(self, processes: int) -> None:
        async def main(street: Street, world: Run) -> None:
            sources = [f"Counter/{letter}" for letter in "abcdef"]
            for number in range(100, 400):
                await street.add(sources[number % 6], number)
            await street.settle()
            assert check_told(street, sources) == 300
            for process, node in street.nodes.items():
                assert node.peers is not None
                counters = node.peers.counters()
                assert counters["neighbour_tells_out"] == counters["neighbour_tells_settled"], process

        play(main, processes=processes)

    def test_only_those_who_owe_something_are_connected_and_only_for_as_long(self) -> None:
        """16 shards that each count as a process would have 240 connections, most of them for nothing."""

        async def main(street: Street, world: Run) -> None:
            def links() -> list[int]:
                made = [node.peers.counters()["neighbour_links"] for node in street.nodes.values() if node.peers]
                return made

            def is_up() -> bool:
                peers = street.nodes[1].peers
                return peers is not None and any(one.is_up for one in peers._sendings.values())

            await asyncio.sleep(2 * sending.IDLE_S_MAX)
            assert links() == [0, 0, 0]
            source, target = street.somebody(1), street.target(2)
            for rounds in (1, 2):
                await street.add(source, 100 * rounds + target)
                await street.settle()
                assert (links(), is_up()) == ([rounds, 0, 0], True)
                await street.add(source, 100 * rounds + 5 + target)
                await street.settle()
                assert links() == [rounds, 0, 0], "the next goes over the same"
                await asyncio.sleep(2 * sending.IDLE_S_MAX)
                assert not is_up()
            assert check_told(street, [source]) == 4

        play(main, processes=3)

    @pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(2, 8))])
    def test_once_and_in_order_over_crashes_and_cuts(self, seed: int) -> None:
        async def main(street: Street, world: Run) -> None:
            chance = world.chance("crashes")
            sources = [f"Counter/{letter}" for letter in "abcdef"]
            number = 100
            for _ in range(12):
                victim = chance.randint(1, street.processes)
                node = street.nodes[victim]
                fault = chance.choice((DiskFault.POWER_LOSS, DiskFault.KILL, None))
                if fault is not None:
                    node.disk.fail(node.disk.calls + chance.randint(1, 40), fault)
                for _ in range(chance.randint(5, 25)):
                    number += 1
                    try:
                        await street.add(chance.choice(sources), number)
                    except (StigmergyError, AssertionError):
                        break
                    if fault is None and chance.random() < 0.3:
                        street.street.cut(victim)
                if fault is not None:
                    await node.lose_power()
                    node.disk.forgive()
                    await asyncio.sleep(chance.random())
                    await node.start()
            await street.settle()
            assert check_told(street, sources) > 50

        play(main, processes=2 + seed % 2, seed=seed)

    def test_neighbour_that_is_down_holds_up_only_what_is_for_it(self) -> None:
        async def main(street: Street, world: Run) -> None:
            await street.nodes[3].kill()
            here = street.somebody(1)
            gone = [n for n in range(5) if street.owner(f"Counter/t{n}") is street.nodes[3]]
            there = [n for n in range(5) if n not in gone]
            assert gone
            assert there
            for number in range(100, 150):
                await street.add(here, number)
            await asyncio.sleep(2.0)
            for target in there:
                assert street.greeted(f"Counter/t{target}", here) == street.told(here, target)
            assert street.nodes[1].host.shards[0].state.outbox.count == 10 * len(gone)
            await street.nodes[3].start()
            await street.settle()
            check_told(street, [here])

        play(main, processes=3)

    def test_window_bounds_what_is_under_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sending, "TELL_BATCH_ITEMS_MAX", 2)
        monkeypatch.setattr(sending, "TELL_BATCHES_IN_FLIGHT_MAX", 3)
        most = 0

        async def main(street: Street, world: Run) -> None:
            nonlocal most
            here = street.somebody(1)
            away = street.target(2)
            street.nodes[2].latency.before_s = 0.5
            asked = [street.add(here, 100 + away + 5 * n) for n in range(60)]
            await asyncio.gather(*asked)
            assert street.nodes[1].peers is not None
            sender = street.nodes[1].peers._sendings[1]
            while street.owed:
                most = max(most, len(sender._in_flight))
                assert len(sender._under_way) <= 6
                await asyncio.sleep(0.01)
            check_told(street, [here])

        play(main)
        assert most == 3


class TestElsewhere:
    def test_direct_caller_hears_who_has_the_agent_and_nothing_is_taken(self) -> None:
        async def main(street: Street, world: Run) -> None:
            away = street.somebody(2)
            live = street.nodes[1].live
            assert live is not None
            for ask in (
                partial(live.send, away, Add(number=1)),
                partial(live.observe, away, Counted(number=1)),
                partial(live.deliver, envelope(1, range(1), address=away)),
            ):
                with pytest.raises(NotOwned, match=r"lives in shard \d, which process 2 of 2 has"):
                    await ask()
            with pytest.raises(NotOwned, match="process 2 of 2 has shard"):
                live.query(away)
            with pytest.raises(NotOwned, match="process 2 of 2"):
                live.resume(away, "somebody")
            assert live.agents() == []
            assert [head.shard for head in live.standing().heads] == [0]

        play(main)

    def test_envelope_for_our_own_shards_is_taken(self) -> None:
        async def main(street: Street, world: Run) -> None:
            own = [f"Counter/{n}" for n in range(50) if street.owner(f"Counter/{n}") is street.nodes[2]][:5]
            live = street.nodes[2].live
            assert live is not None
            for number, address in enumerate(own, start=1):
                await live.deliver(envelope(number, range(number, number + 1), address=address))
            assert [live.query(address).numbers for address in own] == [(n,) for n in range(1, 6)]

        play(main)


class TestLoss:
    def test_sender_that_has_lost_its_end_stops(self) -> None:
        async def main(street: Street, world: Run) -> None:
            here = street.somebody(1)
            away = street.target(2)
            await street.add(here, 100 + away)
            await street.settle()
            source, target = shard_of(here, SHARDS), shard_of(f"Counter/t{away}", SHARDS)
            # As if the receiver had heard more than the sender's log knows of.
            street.nodes[2].host.shards[target].state.marks._marks[f"shard/{source}", 0].sequence = 7
            street.street.cut(1)
            await street.add(here, 200 + away)
            failure = await asyncio.wait_for(street.nodes[1].host.wait_failure(), 10)
            assert isinstance(failure, DataLost)
            assert "has 7 tells of it" in str(failure)
            await street.nodes[2].kill()

        play(main)

    def test_receiver_that_has_lost_its_end_stops(self) -> None:
        async def main(street: Street, world: Run) -> None:
            channel = await meet(street, caller=1, called=2)
            await channel.send(frames.write_frame(PairOpening(0, 1, 5)))
            assert isinstance(said := frames.read_frame(await channel.receive()), PeerRefused)
            assert "5 tells of its shard 0 were durable here, this journal has 0" in said.why
            assert isinstance(street.nodes[2].host.failure, DataLost)

        play(main)

    def test_receiver_hears_from_its_neighbour_that_it_has_lost_its_end(self) -> None:
        async def main(street: Street, world: Run) -> None:
            here, away = street.somebody(1), street.target(2)
            await street.add(here, 100 + away)
            await street.settle()
            source, target = shard_of(here, SHARDS), shard_of(f"Counter/t{away}", SHARDS)
            # As if the receiver had been put back to a time before it heard anything.
            street.nodes[2].host.shards[target].state.marks._marks[f"shard/{source}", 0].sequence = 0
            street.street.cut(1)
            await street.add(here, 200 + away)
            failure = await asyncio.wait_for(street.nodes[2].host.wait_failure(), 10)
            assert isinstance(failure, DataLost)
            assert "1 tells of its shard" in str(failure)
            assert street.nodes[1].host.failure is None
            await street.nodes[2].kill()

        play(main)

    def test_parcel_ends_where_sequences_do_not_follow(self) -> None:
        async def main(street: Street, world: Run) -> None:
            peers = street.nodes[1].peers
            assert peers is not None
            body = encode(("Counter/x", encode(Hello(by="a", number=1))))
            pendings = [Pending(1, n, 0, "Counter/a", "shard/1", n, body) for n in (1, 2, 4)]
            sender = peers._sendings[1]
            sender._waiting.extend(pendings)
            parcels = [frames.read_frame(sender._pack()) for _ in range(2)]
            assert [(one.sequence, len(one.items)) for one in parcels if isinstance(one, TellBatch)] == [(1, 2), (4, 1)]
            sender._forget_connection()
            assert list(sender._waiting) == pendings
            sender._waiting.clear()

        play(main)

    def test_replaced_owner_is_refused_and_stops(self) -> None:
        async def main(street: Street, world: Run) -> None:
            here = street.somebody(1)
            away = street.target(2)
            await street.add(here, 100 + away)
            await street.settle()
            street.nodes[1].host.shards[shard_of(here, SHARDS)].epoch -= 1
            await street.add(here, 200 + away)
            failure = await asyncio.wait_for(street.nodes[1].host.wait_failure(), 10)
            assert isinstance(failure, StaleEpoch)

        play(main)


async def meet(street: Street, caller: int, called: int) -> PeerChannel:
    """A connection by hand, up to the welcome."""
    channel = street.street.connect(caller, called)
    await channel.send(frames.write_frame(frames.Hello(1, "counters", SHARDS, caller, street.processes)))
    assert frames.read_frame(await channel.receive()) == Welcome()
    return channel


class TestManners:
    @pytest.mark.parametrize(
        ("hello", "why"),
        [
            (frames.Hello(1, "others", SHARDS, 1, 2), "not a peer"),
            (frames.Hello(1, "counters", 5, 1, 2), "not a peer"),
            (frames.Hello(1, "counters", SHARDS, 1, 3), "not a peer"),
            (frames.Hello(1, "counters", SHARDS, 2, 2), "not a peer"),
            (frames.Hello(2, "counters", SHARDS, 1, 2), "not a peer"),
            (Welcome(), "must say hello first"),
        ],
    )
    def test_stranger_is_sent_away(self, hello: frames.PeerFrame, why: str) -> None:
        async def main(street: Street, world: Run) -> None:
            channel = street.street.connect(1, 2)
            await channel.send(frames.write_frame(hello))
            assert isinstance(said := frames.read_frame(await channel.receive()), PeerRefused)
            assert why in said.why
            with pytest.raises(LinkDown):
                await channel.receive()

        play(main)

    @pytest.mark.parametrize(
        ("frame", "why"),
        [
            (PairOpening(1, 1, 0), "nothing to tell"),
            (PairOpening(0, 0, 0), "nothing to tell"),
            (PairOpening(-1, 1, 0), "nothing to tell"),
            (PairOpening(9, 1, 0), "nothing to tell"),
            (TellBatch(0, 1, 1, 0, [("Counter/a", b"")]), "count from 1"),
            (TellBatch(0, 1, 1, 1, []), "has items"),
            (PairPosition(0, 1, 0), "must not say PairPosition"),
            (b"\xff", "does not decode"),
        ],
    )
    def test_one_who_does_wrong_is_sent_away(self, frame: frames.PeerFrame | bytes, why: str) -> None:
        async def main(street: Street, world: Run) -> None:
            channel = await meet(street, 1, 2)
            await channel.send(frame if isinstance(frame, bytes) else frames.write_frame(frame))
            assert isinstance(said := frames.read_frame(await channel.receive()), PeerRefused)
            assert why in said.why
            assert street.nodes[2].host.failure is None

        play(main)

    def test_one_who_says_nothing_is_sent_away(self) -> None:
        async def main(street: Street, world: Run) -> None:
            channel = street.street.connect(1, 2)
            assert isinstance(frames.read_frame(await channel.receive()), PeerRefused)

        play(main)
