"""Agents of several nodes share fields: written on one, durable and readable on all, whatever happens in between."""

import asyncio
import random

import pytest

from stigmergy.agents.shared import Merged
from stigmergy.base.errors import ConfigError, Overloaded
from stigmergy.crdt.anti_entropy.context import SharedStatus
from stigmergy.crdt.anti_entropy.messages import ACKNOWLEDGEMENT
from stigmergy.metrics.samples import SampleSheet
from stigmergy.network.replicator import Replicator, Shared, rules_of
from stigmergy.node.settings import Settings, SharedSettings
from stigmergy.shard.inputs import SharedReceived
from stigmergy.sim.network import LinkFaults
from tests.network.replicas.town import FAILS, Count, Miss, See, Show, Town


def test_what_one_writes_all_read_in_milliseconds() -> None:
    town = Town("a b c")

    async def main() -> None:
        await town.start()
        await town.send("a", See(vehicle="V-1"))
        took_s = await town.wait(lambda: town.seen() == [["V-1"]] * 3)
        assert took_s < 0.03
        await town.send("b", Miss(vehicle="V-1"))
        await town.send("c", Count(amount=3))
        await town.send("a", Count(amount=4))
        await town.wait(lambda: town.seen() == [[]] * 3)
        await town.wait(lambda: [town.light(name).passed.value for name in town.names] == [7] * 3)
        await town.wait(lambda: town.replicators["a"].standing().unacknowledged == 0)
        # The phase is shared by the same agent on several nodes, and there is one of each.
        await town.send("a", Show(phase="green"))
        await asyncio.sleep(1)
        assert [town.light(name).phase.value for name in town.names] == ["green", None, None]
        standing = town.replicators["a"].standing()
        assert standing == SharedStatus(objects=3, replicas=3, peers=2)
        assert town.replicators["a"].troubles() == []
        await town.stop()

    town.run(main)


def test_how_long_a_node_lacks_something_is_measured() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        await town.send("a", See(vehicle="V-1"))
        await town.wait(lambda: town.seen() == [["V-1"]] * 2)
        replicator = town.replicators["a"]
        await town.wait(lambda: not replicator.standing().behind)
        town.network.partition(("a",), ("b",))
        await town.send("a", See(vehicle="V-2"))
        await town.wait(lambda: any(one.node == "b" and one.seconds > 5 for one in replicator.standing().behind))
        town.network.heal()
        await town.wait(lambda: not replicator.standing().behind)
        sheet = SampleSheet()
        replicator.measure(sheet)
        found = sheet.samples()
        values = {(one.metric, *one.labels.values()): one.value for one in found.samples}
        assert values["stigmergy_shared_behind",] == values["stigmergy_shared_behind_seconds",] == 0
        assert values["stigmergy_delta_bytes_total", "out"] > 0
        (took,) = [one for one in found.histograms if one.metric == "stigmergy_convergence_seconds"]
        assert took.p99 is not None
        assert took.p99 > 4
        await town.stop()

    town.run(main)


@pytest.mark.parametrize("seed", range(4))
def test_all_converge_over_a_bad_network_with_crashes(seed: int) -> None:
    town = Town("a b c d", seed=seed, in_memory=False)
    chance = random.Random(seed)

    async def main() -> None:
        await town.start()
        town.network.faults = LinkFaults(loss=0.3, duplication=0.1, reordering=0.2, corruption=0.02, jitter_s=0.03)
        expected: dict[str, None] = {}
        for number in range(40):
            name = chance.choice(town.names)
            await town.send(name, See(vehicle=f"V-{number}"))
            expected[f"V-{number}"] = None
            if number % 10 == 3:
                town.network.partition(("a", "b"), ("c", "d"))
            if number % 10 == 8:
                town.network.heal()
            if number % 13 == 5:
                crashed = chance.choice(town.names)
                await town.crash(crashed)
                await asyncio.sleep(chance.random())
                await town.nodes[crashed].start()
            await asyncio.sleep(chance.random() * 0.3)
        town.network.heal()
        await town.wait(lambda: town.seen() == [sorted(expected)] * 4)
        for replicator in town.replicators.values():
            assert replicator.quarantined() == []
        await town.stop()

    town.run(main)


def test_an_acknowledgement_goes_out_only_when_it_is_on_disk() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        acknowledged: list[float] = []

        def watch(what: str, sender: str, to: str, body: bytes) -> None:
            if what == "sent" and sender == "b" and body[0] == ACKNOWLEDGEMENT:
                acknowledged.append(asyncio.get_running_loop().time())

        town.network.watch = watch
        town.nodes["b"].latency.jitter = False
        town.nodes["b"].latency.before_s = 0.15
        start_s = asyncio.get_running_loop().time()
        await town.send("a", See(vehicle="V-1"))
        await asyncio.sleep(0.1)
        assert acknowledged == []
        assert town.seen()[1] == []
        await town.wait(lambda: town.seen()[1] == ["V-1"])
        await asyncio.sleep(0.01)
        assert acknowledged
        assert acknowledged[0] - start_s > 0.15
        await town.stop()

    town.run(main)


def test_one_input_at_a_time_and_what_comes_meanwhile_is_joined() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        taken: list[SharedReceived] = []
        intake = town.nodes["b"].host.intake
        take = intake.take

        def noted(shard: int, one: object) -> asyncio.Future[None]:
            assert isinstance(one, SharedReceived)
            taken.append(one)
            return take(shard, one)

        intake.take = noted  # type: ignore[method-assign]
        town.nodes["b"].latency.jitter = False
        town.nodes["b"].latency.before_s = 0.1
        for number in range(30):
            await town.send("a", See(vehicle=f"V-{number}"))
        await town.wait(lambda: len(town.seen()[1]) == 30)
        assert len(taken) < 10
        assert sum(len(one.deltas) for one in taken) < 30
        await town.stop()

    town.run(main)


def test_an_agent_that_appears_later_is_told_everything() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        await town.send("a", See(vehicle="V-1"))
        live = town.nodes["b"].live
        assert live is not None
        await live.send("Light/second", See(vehicle="V-2"))
        await town.wait(lambda: sorted(town.light("b", "second").seen) == ["V-1", "V-2"])
        await town.wait(lambda: town.seen() == [["V-1", "V-2"]] * 2)
        await town.stop()

    town.run(main)


def test_after_a_restart_the_log_has_it_all_and_nothing_is_asked_twice() -> None:
    town = Town("a b", in_memory=False)

    async def main() -> None:
        await town.start()
        await town.send("a", See(vehicle="V-1"))
        await town.wait(lambda: town.seen() == [["V-1"]] * 2)
        await town.crash("b")
        await town.crash("a")
        await town.nodes["b"].start()
        assert town.seen() == [["V-1"]]
        await town.nodes["a"].start()
        await town.send("b", See(vehicle="V-2"))
        await town.wait(lambda: town.seen() == [["V-1", "V-2"]] * 2)
        await town.stop()

    town.run(main)


def test_who_is_not_trusted_is_not_heard_and_who_is_is() -> None:
    town = Town("a b c")
    town.trusted = [town.nodes["a"].signer.public_key, town.nodes["b"].signer.public_key]

    async def main() -> None:
        await town.start()
        await town.send("c", See(vehicle="V-3"))
        await town.send("a", See(vehicle="V-1"))
        await asyncio.sleep(3)
        assert town.seen()[:2] == [["V-1"]] * 2
        assert town.replicators["a"].counters()["shared_refused"] > 0
        await town.stop()

    town.run(main)


def test_what_the_host_declines_is_a_trouble_until_it_is_taken() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        intake = town.nodes["b"].host.intake
        take = intake.take

        def full(shard: int, one: object) -> asyncio.Future[None]:
            raise Overloaded("no room")

        intake.take = full  # type: ignore[method-assign]
        await town.send("a", See(vehicle="V-1"))
        await asyncio.sleep(0.2)
        assert town.replicators["b"].counters()["shared_declined"] >= 1
        assert "no room" in town.replicators["b"].troubles()[0]
        intake.take = take  # type: ignore[method-assign]
        await town.wait(lambda: town.seen() == [["V-1"]] * 2)
        assert town.replicators["b"].troubles() == []
        await town.stop()

    town.run(main)


def test_members_come_and_go() -> None:
    town = Town("a b c")

    async def main() -> None:
        await town.start()
        await town.crash("c")
        await asyncio.sleep(2)
        assert town.replicators["a"].standing().peers == 1
        await town.send("a", See(vehicle="V-1"))
        await town.nodes["c"].start()
        town.replicators["a"].look()
        await town.wait(lambda: town.seen() == [["V-1"]] * 3)
        await town.stop()

    town.run(main)


def test_an_operator_retires_and_lifts() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        await town.send("b", See(vehicle="V-1"))
        await town.wait(lambda: town.seen() == [["V-1"]] * 2)
        replicator = town.replicators["a"]
        name = "Light.seen/town"
        (replica,) = [one for one, _ in town.light("a").seen.store.context.vector()]
        assert replicator.retire(name, replica)
        assert not replicator.retire("nothing", replica)
        assert not replicator.lift_quarantine(b"nobody")
        await town.stop()

    town.run(main)


def test_without_peers_nothing_is_sent_and_agents_write_as_ever() -> None:
    town = Town("a")

    async def main() -> None:
        await town.start()
        await town.send("a", See(vehicle="V-1"))
        await asyncio.sleep(5)
        assert town.seen() == [["V-1"]]
        assert town.network.counters.sent_count == 0
        await town.stop()

    town.run(main)


def test_a_host_that_has_failed_is_left_alone() -> None:
    town = Town("a b")

    async def main() -> None:
        await town.start()
        town.nodes["b"].host.fail(RuntimeError("the disk"))
        await town.send("a", See(vehicle="V-1"))
        await asyncio.sleep(3)
        assert town.replicators["b"].counters()["shared_states_taken"] == 0
        await town.nodes["a"].stop()
        await town.replicators["b"].stop()
        await town.replicators["b"].stop()

    town.run(main)


def test_events_say_what_peers_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town("a b")
    told: list[Shared] = []
    inner = Replicator._shared

    def noted(replicator: Replicator, shard: int, changes: list[Shared]) -> None:
        if replicator is town.replicators.get("b"):
            told.extend(changes)
        inner(replicator, shard, changes)

    monkeypatch.setattr(Replicator, "_shared", noted)

    async def main() -> None:
        await town.start()
        told.clear()
        await town.send("a", See(vehicle="V-1"))
        await town.wait(lambda: town.seen() == [["V-1"]] * 2)
        ((address, event),) = told
        assert address == "Light/b"
        assert isinstance(event, Merged)
        assert event.field == "seen"
        await town.stop()

    town.run(main)


def test_settings_are_checked_and_become_rules() -> None:
    rules = rules_of(SharedSettings(interval_s=2, interval_s_by_node={"far": 60.0}, skew_s=5))
    assert rules.interval_ns_of("near") == 2_000_000_000
    assert rules.interval_ns_of("far") == 60_000_000_000
    assert rules.skew_ns_max == 5_000_000_000
    for wrong in (
        {"fan_out": 0},
        {"buffer_bytes_max": 1.5},
        {"interval_s": 0},
        {"interval_s_by_node": {"far": -1}},
        {"retire_after_s": float("inf")},
    ):
        with pytest.raises(ConfigError):
            SharedSettings(**wrong)
    assert Settings().shared == SharedSettings()


def test_an_agent_that_fails_on_what_peers_wrote_has_it_all_the_same() -> None:
    """Its handler's fault must not keep replicas apart, nor make the node try again and again."""
    town = Town("a b")

    async def main() -> None:
        await town.start()
        await town.send("a", See(vehicle=FAILS))
        await asyncio.sleep(5)
        assert [FAILS in town.light(name).seen for name in town.names] == [True, True]
        assert town.replicators["b"].counters()["shared_declined"] == 0
        await town.send("b", See(vehicle="V-1"))
        await town.wait(lambda: "V-1" in town.light("a").seen)
        await town.stop()

    town.run(main)
