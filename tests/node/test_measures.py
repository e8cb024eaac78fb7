"""What a host measures of itself, in virtual time: exact where events are few, bounded where they are many."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from stigmergy.agents.columns import ColumnRun
from stigmergy.agents.messages import SECOND_NS
from stigmergy.control.metrics import NodeMetrics
from stigmergy.metrics.samples import HistogramSample, Samples
from stigmergy.node.measures import COLUMN_RECORDS, SAMPLED_BURST, SAMPLED_PER_S, HostMeasures
from stigmergy.node.settings import MetricsSettings, Settings
from stigmergy.shard.commit import Commit, Sealed
from stigmergy.shard.draft import Ready
from stigmergy.sim.node import SimNode
from tests.agents import meters
from tests.node.columns import stage
from tests.node.counting import Add, declare
from tests.node.rig import play


def value(samples: Samples, metric: str, **labels: str) -> float:
    (found,) = [one.value for one in samples.samples if (one.metric, one.labels) == (metric, labels)]
    return found


def histogram(samples: Samples, metric: str, **labels: str) -> HistogramSample:
    (found,) = [one for one in samples.histograms if (one.metric, one.labels) == (metric, labels)]
    return found


def ready(*events: tuple[str, bytes], columns: Sequence[ColumnRun] = ()) -> Ready:
    commit = Commit(1, 1, 0, 1, 1, b"", [], list(events), columns=list(columns))
    return Ready(Sealed(0, 1, 1, 0, len(events), b"", b""), commit, [], [], [], [], [], [], {}, {}, {})


def test_a_node_measures_its_turns_commits_and_types() -> None:
    async def main(node: SimNode) -> Samples:
        live = await node.start()
        for number in range(10):
            await live.send(f"Counter/{number % 2}", Add(number=number))
        await live.send("Counter/0", Add(number=-1))
        return NodeMetrics(live, "1.2").collect()

    found = play(declare(), main)
    again = play(declare(), main)
    assert found == again, "the same seed measures the same"
    assert value(found, "stigmergy_agents", kind="Counter") == 2
    assert value(found, "stigmergy_inputs_total", outcome="accepted") == 10
    assert value(found, "stigmergy_inputs_total", outcome="refused") == 1
    types = {one.labels["event"]: one.value for one in found.samples if one.metric == "stigmergy_events_by_type_total"}
    assert sum(types.values()) == value(found, "stigmergy_events_total", shard="0"), "exact, because they are few"
    assert histogram(found, "stigmergy_mailbox_wait_seconds").count >= 11
    commits = histogram(found, "stigmergy_commit_seconds")
    assert commits.count == value(found, "stigmergy_commits_total", shard="0")
    assert value(found, "stigmergy_state_bytes", kind="Counter") > 0
    assert [one.name for one in found.busiest[:2]] == ["Counter/0", "Counter/1"]
    assert {one.agent for one in found.largest} == {"Counter/0", "Counter/1"}


def test_nothing_is_recorded_if_that_is_switched_off() -> None:
    async def main(node: SimNode) -> Samples:
        live = await node.start()
        await live.send("Counter/a", Add(number=1))
        assert live.host.measures is None
        return NodeMetrics(live).collect()

    found = play(declare(), main, settings=structs.replace(Settings(), metrics=MetricsSettings(record=False)))
    assert not found.histograms
    assert value(found, "stigmergy_events_total", shard="0") > 0, "what is known anyhow is told"


def test_a_wait_in_the_mailbox_is_seen() -> None:
    """The wait is that of the inputs, from when they were put until the turn that takes them."""

    async def main(node: SimNode) -> float:
        live = await node.start()
        await asyncio.sleep(1)
        await live.send("Counter/a", Add(number=0))
        before = live.host.measures.mailbox_wait.sum if live.host.measures else 0
        await asyncio.sleep(7)
        await live.send("Counter/a", Add(number=1))
        assert live.host.measures is not None
        return (live.host.measures.mailbox_wait.sum - before) / SECOND_NS

    assert play(declare(), main) < 1, "an idle node does not wait: time counts from the put, not from the last turn"


def test_event_to_action_is_from_the_acceptance_to_the_release_behind_the_disk() -> None:
    """With one input in each commit, those that come while a slow write is under way wait in the mailbox as well."""

    async def main(node: SimNode) -> tuple[HostMeasures, float]:
        live, loop = await node.start(), asyncio.get_running_loop()
        await live.send("Counter/a", Add(number=1))
        node.latency.before_s = 1.0

        async def took_s(number: int) -> float:
            began_s = loop.time()
            await live.send("Counter/a", Add(number=number))  # answered when its tell is released
            return loop.time() - began_s

        first = asyncio.ensure_future(took_s(100))
        await asyncio.sleep(0.2)
        whole_s = sum(await asyncio.gather(*(took_s(number) for number in range(101, 105)))) + await first
        node.latency.before_s = 0.0
        assert live.host.measures is not None
        return live.host.measures, whole_s

    found, whole_s = play(declare(), main, settings=structs.replace(Settings(), batch_events_max=1))
    assert found.event_to_action.value.count == 5, "one tell each"
    assert found.mailbox_wait.sum > SECOND_NS // 2
    assert found.event_to_action.sum / SECOND_NS == pytest.approx(whole_s, abs=0.05)
    assert whole_s > 2
    assert whole_s > found.commit.sum / SECOND_NS > 1


class TestSampling:
    def test_many_events_are_estimated_from_a_bounded_sample(self) -> None:
        measures, now_ns = HostMeasures(), SECOND_NS
        hot = [(f"Drone/{number}" if number % 4 else "Drone/hot", b"\x81\xa4type\xa1A") for number in range(1_000)]
        for _ in range(100):
            measures.group([ready(*hot)], now_ns)
            now_ns += SECOND_NS // 100
        assert sum(measures.types.values()) + measures._events.missed == pytest.approx(100_000)
        assert measures.types["Drone", "A"] == pytest.approx(100_000, rel=0.05)
        first = measures.busiest.top(1)[0]
        assert first.name == "Drone/hot"
        assert 0.1 < first.share < 0.5

    def test_no_more_is_looked_at_than_allowed(self) -> None:
        looked = 0

        class Counted(list[tuple[str, bytes]]):
            def __getitem__(self, number: object) -> tuple[str, bytes]:  # type: ignore[override]
                nonlocal looked
                looked += 1
                return super().__getitem__(number)  # type: ignore[no-any-return, call-overload]

        measures, events = HostMeasures(), Counted([("Drone/1", b"\x81\xa4type\xa1A")] * 5_000)
        for number in range(200):
            measures._look_at(events, len(events), SECOND_NS + number * SECOND_NS // 100)
        assert looked <= SAMPLED_BURST + 3 * SAMPLED_PER_S

    def test_columns_count_by_kind(self) -> None:
        measures = HostMeasures()
        run = ColumnRun("Drone", b"", 1, "s", 300, b"")
        measures.group([ready(columns=[run])], SECOND_NS)
        assert measures.types == {("Drone", COLUMN_RECORDS): 300}
        assert measures.group_events.sum == 300


def test_busy_compiled_agents_are_named_too() -> None:
    async def main(node: SimNode) -> Samples:
        live = await node.start()
        names = [f"m{number}" for number in range(20)]
        await live.enroll("Meter", names)
        radio = stage.Radio(live)
        for _ in range(100):
            items = [(name, meters.Counted(by=1)) for name in (*names, *["m7"] * 30)]
            await live.host.columns.deliver(radio.batch(*items))
            await asyncio.sleep(0.1)
        return NodeMetrics(live).collect()

    busiest = stage.play(stage.declare(stage.Hand()), main).busiest
    assert busiest[0].name == "Meter/m7"
    assert busiest[0].share == pytest.approx(31 / 50, abs=0.1)


def test_a_hot_shard_is_found_by_what_waits_for_it() -> None:
    async def main(node: SimNode) -> Samples:
        live = await node.start()
        by_shard = {live.host.declaration.homes.of(one): one for one in (f"Counter/{number}" for number in range(100))}
        node.latency.before_s = 2.0
        sent = [asyncio.ensure_future(live.send(by_shard[0], Add(number=number))) for number in range(2)]
        await asyncio.sleep(0.3)
        sent += [asyncio.ensure_future(live.send(by_shard[2], Add(number=number))) for number in range(50)]
        await asyncio.sleep(0.3)
        sent.append(asyncio.ensure_future(live.send(by_shard[1], Add(number=1))))
        await asyncio.sleep(0.3)
        found = NodeMetrics(live).collect()
        node.latency.before_s = 0.0
        await asyncio.gather(*sent)
        return found

    found = play(declare(shards=3), main, settings=structs.replace(Settings(), batch_events_max=1))
    waiting = [value(found, "stigmergy_shard_waiting_items", shard=str(shard)) for shard in range(3)]
    lags_s = [value(found, "stigmergy_shard_lag_seconds", shard=str(shard)) for shard in range(3)]
    assert waiting == [0, 1, 50]
    assert lags_s == pytest.approx([0, 0.3, 0.6], abs=0.05)
