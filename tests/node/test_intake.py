"""What the intake says of sizes must hold: the shard trusts it, and a commit past its limit stops the node."""

from __future__ import annotations

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.messages import Event, Message, within
from stigmergy.node.declaration import Declaration
from stigmergy.shard.homes import shard_of
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Loaded(Event, keep=within(seconds=5)):
    pad: str = ""


class Lorry(Agent):
    count: int = 0

    @evolve
    def loaded(self, event: Loaded) -> None:
        self.count += 1


def declare(shards: int) -> Declaration:
    return Declaration("lorries", agents=[Lorry], shards=shards)


def test_a_large_envelope_all_for_one_of_four_shards() -> None:
    address = next(f"Lorry/{n}" for n in range(100) if shard_of(f"Lorry/{n}", 4) == 2)

    async def main(node: SimNode) -> int:
        live = await node.start()
        items: list[tuple[str, Message]] = [(address, Loaded(pad="x" * 3_000)) for _ in range(300)]
        await live.deliver(pack_envelope("gateway", items, sequence=1))
        return int(live.query(address).count)

    assert play(declare(4), main) == 300


def test_many_small_events_with_long_names() -> None:
    address = "Lorry/" + "x" * 128

    async def main(node: SimNode) -> int:
        live = await node.start()
        waiting = [live.observe(address, Loaded()) for _ in range(5_000)]
        for one in waiting:
            await one
        await node.stop()
        live = await node.start()
        return int(live.query(address).count)

    assert play(declare(1), main) == 5_000
