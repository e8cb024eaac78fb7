"""A replica that lies is caught by all who were told different things; and those go on without it."""

import asyncio
from typing import Any

from rigs.liar import LyingMesh
from stigmergy.network.replicator import Replicator
from tests.runtime.replicas.town import Count, See, Town


class TownWithALiar(Town):
    """Node d can lie."""

    mesh: LyingMesh

    def _parts(self, node: Any, host: Any) -> list[Replicator]:
        if node.name != "d":
            return super()._parts(node, host)
        objects = lambda: [held.name for held in self.replicators["d"].machine.objects]  # noqa: E731
        self.mesh = LyingMesh(self.network.mesh("d"), node.signer, "town", objects)
        self.replicators["d"] = Replicator(host, self.mesh, node.signer, node.entropy, self.network.nodes)
        return [self.replicators["d"]]


def test_a_liar_is_shut_out_and_the_others_go_on() -> None:
    town = TownWithALiar("a b c d")

    async def main() -> None:
        await town.start()
        await town.send("d", See(vehicle="true"))
        await town.wait(lambda: town.seen() == [["true"]] * 4)
        town.mesh.lies = True
        await town.send("d", See(vehicle="V-1"))
        await asyncio.sleep(5)
        assert town.mesh.told_count > 0
        key = town.nodes["d"].signer.public_key
        for name in "abc":
            (out,) = town.replicators[name].quarantined()
            assert out.key == key
            assert out.node == "d"
            assert town.replicators[name].standing().diverged == ("Light.seen/town",)
        await town.send("d", Count(amount=100))
        await town.send("a", Count(amount=1))
        await town.wait(lambda: [town.light(name).passed.value for name in "abc"] == [1] * 3)
        assert any("two different changes" in trouble for trouble in town.replicators["a"].troubles())
        await town.stop()

    town.run(main)


def test_without_a_lie_everything_passes_through() -> None:
    town = TownWithALiar("a d")

    async def main() -> None:
        await town.start()
        assert (town.mesh.node, town.mesh.bytes_max, town.mesh.contact) == ("d", 1024, "")
        town.mesh.introduce("a", "")
        await town.send("d", See(vehicle="V-1"))
        await town.wait(lambda: town.seen() == [["V-1"]] * 2)
        assert town.mesh.told_count == 0
        assert town.mesh.counters.sent_count > 0
        await town.stop()

    town.run(main)
