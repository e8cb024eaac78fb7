"""A replica that lies is caught by all who were told different things; and those go on without it."""

import asyncio

from stigmergy.sim.liar import Lies, begin_to_lie, tell_the_truth
from tests.network.replicas.town import Count, See, Town


def let_lie(town: Town) -> Lies:
    """From now on node d lies to b, whose name is an even number."""
    lies = Lies()
    begin_to_lie(town.replicators["d"], "town", town.nodes["d"].signer, lies)
    return lies


def test_a_liar_is_shut_out_and_the_others_go_on() -> None:
    town = Town("a b c d")

    async def main() -> None:
        await town.start()
        await town.send("d", See(vehicle="true"))
        await town.wait(lambda: town.seen() == [["true"]] * 4)
        lies = let_lie(town)
        await town.send("d", See(vehicle="V-1"))
        await asyncio.sleep(5)
        assert lies.count > 0
        assert list(lies.objects) == ["Light.seen/town"]
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
    town = Town("a d")

    async def main() -> None:
        await town.start()
        lies = let_lie(town)
        mesh = town.replicators["d"]._mesh
        assert (mesh.node, mesh.bytes_max, mesh.contact) == ("d", 1024, "")
        mesh.introduce("a", "")
        await town.send("d", See(vehicle="V-1"))
        await town.wait(lambda: town.seen() == [["V-1"]] * 2)
        assert lies.count == 0
        assert mesh.counters.sent_count > 0
        tell_the_truth(town.replicators["d"])
        await town.send("d", See(vehicle="V-2"))
        await town.wait(lambda: town.seen() == [["V-1", "V-2"]] * 2)
        await town.stop()

    town.run(main)
