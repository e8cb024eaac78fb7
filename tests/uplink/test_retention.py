"""Retention and an uplink: the log waits for the receiver as long as there is room, and what had to go is declared."""

import asyncio

import msgspec
import pytest

from stigmergy.agents.supervision import InputsSkipped
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.uplink.rules import Aggregate, UplinkRule
from tests.uplink.stage import RULE, Arrived, Stage, copy_of, restore

SNAPSHOTS = Snapshots(every_events=20, every_s=1e9, tail_ratio=0.0, share_max=1.0)


def keeping(**retention: float | None) -> Settings:
    return Settings(snapshots=SNAPSHOTS, retention=Retention(check_every_s=1.0, **retention))  # type: ignore[arg-type]


def first_kept(stage: Stage) -> int:
    store = stage.device.store
    assert store is not None
    return store.commits[0][0].sealed.position


def declared_lost(stage: Stage) -> list[InputsSkipped]:
    """What the gateway's log says was lost."""
    return [
        event
        for commit in stage.gateway.logbook.commits[0]
        for _, body in commit.events
        if (event := skipped(body)) is not None
    ]


def skipped(body: bytes) -> InputsSkipped | None:
    try:
        return msgspec.msgpack.decode(body, type=InputsSkipped)
    except msgspec.DecodeError:
        return None


def test_by_age_it_never_passes_what_was_not_confirmed() -> None:
    stage = Stage(settings=keeping(keep_s=20.0))
    full_log: list[tuple[str, ...]] = []

    async def scene() -> None:
        await stage.start()
        await stage.fly(100)
        await asyncio.sleep(60)
        assert first_kept(stage) > 1, "what is confirmed goes"
        stage.broker.cut("device")
        before = first_kept(stage)
        await stage.fly(300)
        assert first_kept(stage) <= before + 20, "what is not confirmed stays"
        # Nor does a restart forget that: until the receiver has answered nothing counts as confirmed.
        await stage.device.kill()
        await stage.device.start()
        held = first_kept(stage)
        await stage.fly(60)
        assert first_kept(stage) == held
        stage.broker.restore("device")
        await stage.fly(5)
        await stage.settle()
        await stage.fly(200)
        assert first_kept(stage) > held + 300
        await stage.settle()
        assert stage.standing().lost_commits == 0
        assert not declared_lost(stage)
        full_log.append(stage.trail("1"))

    stage.world.run(scene())
    # The device's log is gone; the logbook of the simulator remembers what it was.
    assert list(full_log[0]) == stage.expected_of_commits(stage.device.logbook.commits[0], "1")


def test_the_log_of_a_summary_that_is_not_complete_stays_although_it_is_confirmed() -> None:
    rule = UplinkRule(only=("Arrived",), aggregate={"Measured": Aggregate(every="2m")})
    stage = Stage(rule=rule, settings=keeping(keep_s=20.0))

    async def scene() -> None:
        await stage.start()
        await stage.fly(310)
        stage.check_against_logbook()
        await stage.device.kill()
        await stage.device.start()
        await stage.fly(150)
        await stage.settle()
        stage.check_against_logbook()
        assert first_kept(stage) > 200

    stage.world.run(scene())


def test_without_room_the_oldest_goes_and_the_receiver_is_told() -> None:
    stage = Stage(settings=keeping(keep_bytes=40_000))

    async def scene() -> None:
        await stage.start()
        await stage.fly(50)
        await stage.settle()
        stage.broker.cut("device")
        confirmed = first_kept(stage)
        await stage.fly(600)
        store = stage.device.store
        assert store is not None
        assert store.used_bytes < 80_000
        assert first_kept(stage) > confirmed + 100
        live = stage.device.live
        assert live is not None
        assert live.standing().counters["commits_dropped_unsent"] > 100
        assert live.failure is None
        stage.broker.restore("device")
        await stage.fly(20)
        await stage.settle()
        assert stage.standing().lost_commits > 100
        lost = declared_lost(stage)
        assert len(lost) == 1
        assert "was dropped before it was sent" in lost[0].because
        gateway = stage.gateway.live
        assert gateway is not None
        counters = gateway.standing().counters
        assert (counters["skipped"], counters["collected_lost"]) == (1, 1)
        # Everything that was still there has arrived, behind what had arrived before.
        rest = [what for what in stage.expected("1") if what.startswith("arrived")]
        arrived = [what for what in stage.trail("1") if what.startswith("arrived")]
        assert len(rest) > 20
        assert arrived[-len(rest) :] == rest
        assert len(dict.fromkeys(stage.trail("1"))) == len(stage.trail("1"))

    stage.world.run(scene())


def test_a_log_that_must_be_sent_is_held_also_without_room() -> None:
    rule = UplinkRule(only=RULE.only, when_full="hold")
    stage = Stage(rule=rule, settings=keeping(keep_bytes=20_000))

    async def scene() -> None:
        await stage.start()
        await stage.fly(50)
        await stage.settle()
        stage.broker.cut("device")
        confirmed = first_kept(stage)
        await stage.fly(400)
        assert first_kept(stage) <= confirmed + 150
        live = stage.device.live
        assert live is not None
        assert live.standing().counters["commits_dropped_unsent"] == 0
        stage.broker.restore("device")
        await stage.fly(20)
        await stage.settle()
        assert not declared_lost(stage)
        stage.check_against_logbook()

    stage.world.run(scene())


@pytest.mark.parametrize("wait_s", [0, 400])
def test_a_receiver_that_went_back_further_than_the_log_is_told_what_is_missing(wait_s: int) -> None:
    stage = Stage(settings=keeping(keep_s=20.0))

    async def scene() -> None:
        await stage.start()
        await stage.fly(10)
        copy = copy_of(stage.gateway)
        await stage.fly(400)
        await stage.settle()
        await restore(stage.gateway, copy)
        await asyncio.sleep(wait_s)
        live = stage.device.live
        assert live is not None
        if not wait_s:
            await live.observe("Drone/1", Arrived(number=9999))
        await asyncio.sleep(30)
        assert len(declared_lost(stage)) == 1
        await stage.settle()

    stage.world.run(scene())
