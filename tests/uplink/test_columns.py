"""What a device sends up of compiled agents: messages with numbers, from any place in its log, as any others."""

from stigmergy.agents.codec import tag_of
from stigmergy.uplink.lane import Lane
from stigmergy.uplink.messages import UplinkMark
from stigmergy.uplink.rules import Aggregate, SieveCounters, UplinkRule, number_of
from tests.audit.column_log import ColumnLog, a_log, a_run, measured


async def test_records_go_up_as_messages_from_wherever_the_receiver_is() -> None:
    log = await a_log()
    everything: list[tuple[int, str, bytes]] = []
    for known in (0, 3, 4):
        lane = Lane(log.journal, 0, UplinkRule(), SieveCounters())
        marks = {7: UplinkMark(0, 7, 1, number_of(known), b"")} if known else {}
        assert list(lane.resume(marks, 5, 1, 0)) is not None
        while lane.fill(5):
            pass
        batch = lane.cut(1, 2**20, 0, pass_due_ns=0)
        assert batch is not None
        everything = everything or batch.items
        assert batch.items == [item for item in everything if item[0] > number_of(known)]
    assert [(address, tag_of(body)) for _, address, body in everything] == [
        ("Drone/D-1", "Seen@1"),
        ("Meter/M-7", "Measured@1"),
        ("Meter/M-1", "Measured@1"),
        ("Meter/M-8", "Measured@1"),
        ("Meter/M-1", "Measured@1"),
        ("Meter/M-2", "Measured@1"),
    ]


async def test_a_million_measurements_are_a_few_summaries() -> None:
    log = ColumnLog()
    await log.begin()
    for number in range(10):
        await log.add(columns=[a_run([measured(agent % 3, float(number)) for agent in range(300)], 0)])
    rule = UplinkRule(only=(), aggregate={"Measured": Aggregate(every="5s", fields=("level",))})
    counters = SieveCounters()
    lane = Lane(log.journal, 0, rule, counters)
    assert list(lane.resume({}, 12, 1, 0)) == []
    while lane.fill(12):
        pass
    batch = lane.cut(1, 2**20, 0, pass_due_ns=0)
    assert batch is not None
    assert {tag_of(body) for _, _, body in batch.items} == {"stigmergy.Summary@1"}
    assert len(batch.items) == 2 * 3
    assert counters.uplink_events_left_out == 3000 + 3
