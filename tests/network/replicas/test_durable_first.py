"""Peers are told of nothing that is not on disk: after a crash its number would be given to another change."""

import asyncio

from tests.network.replicas.town import Count, See, Town


def test_what_is_stepped_and_not_on_disk_is_not_among_what_we_say_we_have() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        node, replicator = town.nodes["a"], town.replicators["a"]
        node.latency.before_s = node.latency.after_s = 0.2
        assert node.live is not None
        asked = [asyncio.ensure_future(town.send("a", See(vehicle=f"V-{number}"))) for number in range(3)]
        ahead = 0
        for step in range(60):
            await asyncio.sleep(0.05)
            if step % 4 == 0 and step < 40:
                asked.append(asyncio.ensure_future(town.send("a", Count(amount=1))))
                asked.append(asyncio.ensure_future(town.send("a", See(vehicle=f"W-{step}"))))
            on_disk = node.logbook.states[0].agents["Light/a"]
            stepped = node.live.host.shards[0].state.agents["Light/a"]
            for held in replicator.machine.objects:
                field = held.name.partition("/")[0].removeprefix("Light.")
                durable = getattr(on_disk, field).store.context
                assert durable.covers(held.store.context), f"{held.name} at step {step}"
                ahead += not durable.covers(getattr(stepped, field).store.context)
        assert ahead > 10, "often enough there was something that is not on disk"
        await asyncio.gather(*asked)
        await asyncio.sleep(2.0)
        await town.stop()

    town.run(main)
