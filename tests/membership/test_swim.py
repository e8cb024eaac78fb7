"""SWIM, packet by packet: questions, helpers, suspicion, objection, farewells, comparisons, restarts, twins."""

import random

import pytest

from stigmergy.base.errors import Bug, ConfigError
from stigmergy.membership.packets import (
    DIGESTS_BYTES,
    INCARNATION_MAX,
    MemberStatus,
    PacketKind,
    SwimPacket,
    SwimUpdate,
    write_packet,
)
from stigmergy.membership.settings import SwimSettings
from stigmergy.membership.swim import (
    AGAIN_TIMES_MAX,
    ASKED_COUNT_MAX,
    PAGES_COUNT_MAX,
    RELAYS_COUNT_MAX,
    TWINS_COUNT_MAX,
    OwnRecord,
    Rumours,
    Swim,
)
from tests.membership.scene import KEY, SECOND_NS, Scene, run_of


def said(node: str, status: MemberStatus, incarnation: int = 10, life: int = 1) -> SwimUpdate:
    return SwimUpdate(node, incarnation, status, run_of(node, life), "", b"")


# Questions and answers.


def test_two_who_know_each_other_ask_and_answer_and_nobody_is_suspected() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    scene.let_pass(20)
    for node in scene.nodes.values():
        assert 18 <= node.counters.probes_count <= 21
        assert node.counters.suspected_count == 0
    assert scene.events == []


def test_ping_is_answered_with_its_number() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    ((to, packet),) = scene.tell("a", "b", PacketKind.PING, sequence=77)
    assert (to, packet.kind, packet.sequence, packet.subject) == ("b", PacketKind.ACK, 77, "")


def test_who_does_not_answer_is_asked_again_then_through_helpers_then_suspected_then_dead() -> None:
    scene = Scene("a", "b", "c", "d", "e", "x")
    scene.acquaint()
    scene.let_pass(4, lose=("x",))
    assert sum(node.counters.suspected_count for node in scene.nodes.values()) >= 1
    assert scene.status("x", at="a") == "suspect"
    assert [record.node for record in scene.nodes["a"].members()] == ["a", "b", "c", "d", "e", "x"]
    scene.let_pass(8, lose=("x",))
    assert {scene.status("x", at=name) for name in "abcde"} == {"dead"}
    assert sorted(scene.events) == [(name, "vanished", "x") for name in "abcde"]
    assert sum(node.counters.declared_dead_count for node in scene.nodes.values()) >= 1


def test_helper_asks_and_brings_the_answer() -> None:
    scene = Scene("helper", "asker", "target")
    scene.acquaint()
    ((to, ping),) = scene.tell("helper", "asker", PacketKind.PING_REQ, sequence=5, subject="target")
    assert (to, ping.kind) == ("target", PacketKind.PING)
    # Not from whom it was asked about: no proof.
    assert scene.tell("helper", "asker", PacketKind.ACK, sequence=ping.sequence) == []
    ((to, ack),) = scene.tell("helper", "target", PacketKind.ACK, sequence=ping.sequence)
    assert (to, ack.kind, ack.sequence, ack.subject) == ("asker", PacketKind.ACK, 5, "target")
    assert scene.tell("helper", "target", PacketKind.ACK, sequence=ping.sequence) == []


def test_helper_who_is_asked_about_itself_answers() -> None:
    scene = Scene("helper", "asker")
    scene.acquaint()
    ((to, ack),) = scene.tell("helper", "asker", PacketKind.PING_REQ, sequence=5, subject="helper")
    assert (to, ack.kind, ack.sequence) == ("asker", PacketKind.ACK, 5)


def test_questions_for_others_are_bounded_and_given_up() -> None:
    scene = Scene("helper", "asker", "target")
    scene.acquaint()
    for number in range(RELAYS_COUNT_MAX):
        assert scene.tell("helper", "asker", PacketKind.PING_REQ, sequence=number, subject="target")
    assert scene.tell("helper", "asker", PacketKind.PING_REQ, subject="target") == []
    scene.now_ns += 2 * SECOND_NS
    scene.nodes["helper"].tick(scene.now_ns)
    scene.sent("helper")
    assert scene.tell("helper", "asker", PacketKind.PING_REQ, subject="target")


def test_answer_through_a_helper_is_as_good() -> None:
    scene = Scene("a", "b", "h")
    scene.acquaint()
    node = scene.nodes["a"]
    sent: list[tuple[str, SwimPacket]] = []
    while not any(packet.kind == PacketKind.PING_REQ for _, packet in sent):
        scene.now_ns += SECOND_NS // 10
        node.tick(scene.now_ns)
        sent = scene.sent("a")
    pings = [(to, packet) for to, packet in sent if packet.kind == PacketKind.PING]
    ((helper, request),) = [(to, packet) for to, packet in sent if packet.kind == PacketKind.PING_REQ]
    ((target, ping),) = pings
    assert {helper, target} == {"b", "h"}
    assert (request.subject, request.sequence) == (target, ping.sequence)
    scene.tell("a", helper, PacketKind.ACK, sequence=request.sequence, subject=target)
    scene.now_ns += SECOND_NS
    node.tick(scene.now_ns)
    assert node.counters.suspected_count == 0


def test_late_or_foreign_answers_prove_nothing() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    node = scene.nodes["a"]
    assert scene.tell("a", "b", PacketKind.ACK, sequence=1) == []  # nothing was asked
    scene.let_pass(1.05, lose=("b",))
    assert node._probe is not None
    scene.tell("a", "b", PacketKind.ACK, sequence=(node._probe.sequence + 1) % 2**32)
    assert not node._probe.is_answered


def test_member_that_left_while_it_was_asked_is_not_suspected() -> None:
    scene = Scene("a", "b", "c")
    scene.acquaint()
    node = scene.nodes["a"]
    while node._probe is None:
        scene.now_ns += SECOND_NS // 10
        node.tick(scene.now_ns)
    target = node._probe.target
    other = "b" if target == "c" else "c"
    scene.tell("a", other, PacketKind.STATE, said(target, MemberStatus.LEFT))
    while node.counters.probes_count < 2:
        scene.now_ns += SECOND_NS // 10
        node.tick(scene.now_ns)
    assert node.counters.suspected_count == 0


def test_suspects_are_asked_again_and_told_so() -> None:
    scene = Scene("a", "b", "c")
    scene.acquaint()
    node = scene.nodes["a"]
    scene.tell("a", "c", PacketKind.PING, said("b", MemberStatus.SUSPECT))
    scene.now_ns += SECOND_NS
    node.tick(scene.now_ns)
    asked = [packet for to, packet in scene.sent("a") if to == "b" and packet.kind == PacketKind.PING]
    assert asked
    assert asked[0].updates[0] == node.table["b"]
    assert asked[0].updates[0].status == MemberStatus.SUSPECT


def test_suspects_are_asked_few_at_a_time_and_not_for_ever() -> None:
    names = [f"n{number:02}" for number in range(13)]
    scene = Scene(*names, settings=SwimSettings(suspicion_s_min=60))
    scene.acquaint()
    node = scene.nodes["n00"]
    scene.tell("n00", "n01", PacketKind.PING, *(said(name, MemberStatus.SUSPECT) for name in names[2:]))
    asked: list[int] = []
    for _ in range(20):
        scene.now_ns += SECOND_NS
        node._next_probe_ns, node._probe = scene.now_ns, None
        node._ask_suspects()
        asked.append(len(scene.sent("n00")))
    assert asked[:8] == [8] * 8
    assert sum(asked) == 11 * AGAIN_TIMES_MAX


def test_node_alone_asks_nobody() -> None:
    scene = Scene("a")
    scene.let_pass(5)
    assert scene.nodes["a"].counters.probes_count == 0


# Objection.


@pytest.mark.parametrize("status", [MemberStatus.SUSPECT, MemberStatus.DEAD, MemberStatus.LEFT])
def test_who_is_spoken_of_objects_in_its_answer(status: MemberStatus) -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    ((_, ack),) = scene.tell("a", "b", PacketKind.PING, said("a", status, 12))
    assert ack.incarnation == 13
    assert ack.updates[0] == SwimUpdate("a", 13, MemberStatus.ALIVE, run_of("a"), "a:1", b"")
    assert scene.nodes["a"].counters.refuted_count == 1
    scene.tell("a", "b", PacketKind.PING, said("a", status, 12))
    assert scene.nodes["a"].counters.refuted_count == 1


def test_objection_is_believed_from_the_head_of_a_packet() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    scene.tell("a", "c", PacketKind.STATE, said("b", MemberStatus.SUSPECT))
    assert scene.status("b", at="a") == "suspect"
    scene.tell("a", "b", PacketKind.PING, incarnation=11)
    assert scene.status("b", at="a") == "alive"
    assert scene.nodes["a"].table["b"].contact == "b:1"


def test_suspect_who_does_not_know_is_told_when_it_speaks() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    scene.tell("a", "c", PacketKind.STATE, said("b", MemberStatus.SUSPECT))
    ((_, ack),) = [item for item in scene.tell("a", "b", PacketKind.PING) if item[1].kind == PacketKind.ACK]
    assert ack.updates[0].node == "b"
    assert ack.updates[0].status == MemberStatus.SUSPECT


def test_who_is_gone_here_and_does_not_know_is_told_when_it_speaks() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    scene.nodes["a"]._declare("b", MemberStatus.DEAD, scene.now_ns)
    scene.nodes["a"]._rumours = Rumours()  # nothing is passed on any more
    ((_, ack),) = scene.tell("a", "b", PacketKind.PING)
    assert [(update.node, update.status) for update in ack.updates] == [("b", MemberStatus.DEAD)]


def test_suspicion_ends_with_an_objection() -> None:
    scene = Scene("a", "b", "c")
    scene.acquaint()
    scene.nodes["a"]._suspect("b", scene.now_ns)
    scene.let_pass(20)
    assert {scene.status("b", at=name) for name in "abc"} == {"alive"}
    assert scene.events == []
    assert scene.nodes["b"].counters.refuted_count >= 1


@pytest.mark.parametrize("kind", [PacketKind.STATE, PacketKind.PING])
def test_who_is_called_dead_is_suspected_and_has_its_time(kind: PacketKind) -> None:
    scene = Scene("a", "b", "c")
    scene.acquaint()
    node = scene.nodes["a"]
    for _ in range(3):
        scene.tell("a", "b", kind, said("c", MemberStatus.DEAD))
        scene.now_ns += SECOND_NS
        node.tick(scene.now_ns)
        assert scene.status("c", at="a") == "suspect"
    scene.now_ns += SECOND_NS
    node.tick(scene.now_ns)
    assert scene.status("c", at="a") == "dead"
    scene.tell("a", "b", kind, said("c", MemberStatus.DEAD, 11))
    assert node.table["c"].incarnation == 11
    assert scene.events == [("a", "vanished", "c")]
    scene.tell("a", "b", kind, said("c", MemberStatus.SUSPECT, 12))
    assert scene.events[-1] == ("a", "appeared", "c")


def test_who_is_called_dead_is_told_so_at_once_and_objects() -> None:
    scene = Scene("a", "b", "c")
    scene.acquaint()
    ((to, ping),) = scene.tell("a", "b", PacketKind.STATE, said("c", MemberStatus.DEAD))
    assert (to, ping.kind, ping.updates[0].node, ping.updates[0].status) == (
        "c",
        PacketKind.PING,
        "c",
        MemberStatus.SUSPECT,
    )
    scene.nodes["c"].step("a", write_packet(ping, KEY), scene.now_ns)
    scene.carry()
    assert scene.status("c", at="a") == "alive"
    assert scene.events == []


def test_what_others_call_dead_is_not_passed_on_as_our_own_suspicion() -> None:
    scene = Scene("a", "b", "c")
    scene.acquaint()
    scene.tell("a", "b", PacketKind.STATE, said("c", MemberStatus.DEAD))
    ((_, ack),) = scene.tell("a", "b", PacketKind.PING)
    assert ack.updates == ()


def test_others_make_us_suspect_few_at_a_time() -> None:
    names = [f"n{number:02}" for number in range(40)]
    scene = Scene(*names)
    scene.acquaint()
    scene.tell("n00", "n01", PacketKind.STATE, *(said(name, MemberStatus.DEAD) for name in names[2:]))
    assert sum(scene.status(name, at="n00") == "suspect" for name in names) == ASKED_COUNT_MAX


def test_nobody_is_buried_who_was_never_known() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    scene.tell("a", "b", PacketKind.PING, said("ghost", MemberStatus.DEAD), said("ghost", MemberStatus.SUSPECT))
    assert scene.status("ghost", at="a") == "unknown"
    assert scene.events == []


def test_process_that_stood_still_accuses_nobody() -> None:
    scene = Scene("a", "b", "c")
    scene.acquaint()
    node = scene.nodes["a"]
    scene.let_pass(1.05, lose=("a",))
    node.tick(scene.now_ns)
    node._suspect("b", scene.now_ns)
    node._suspect("b", scene.now_ns)
    scene.sent("a")
    scene.now_ns += 60 * SECOND_NS
    node.tick(scene.now_ns)
    assert node.counters.paused_count == 1
    assert scene.status("b", at="a") == "suspect"
    scene.carry()
    assert scene.status("b", at="a") == "alive"
    assert scene.events == []


# Coming, going, coming back.


def test_stranger_is_answered_and_asked_who_it_is() -> None:
    scene = Scene("a", "b")
    sent = scene.tell("a", "b", PacketKind.PING)
    assert sorted(packet.kind for _, packet in sent) == [PacketKind.ACK, PacketKind.SYNC]
    scene.tell("a", "b", PacketKind.STATE, scene.nodes["b"].identity.record)
    assert scene.events == [("a", "appeared", "b")]


def test_new_run_is_a_new_member() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    sent = scene.tell("a", "b", PacketKind.PING, life=2, incarnation=20)
    assert [packet.kind for _, packet in sent] == [PacketKind.SYNC, PacketKind.ACK]
    scene.tell("a", "b", PacketKind.STATE, said("b", MemberStatus.ALIVE, 20, life=2), life=2, incarnation=20)
    assert scene.events == [("a", "appeared", "b")]
    assert scene.nodes["a"].table["b"].run == run_of("b", 2)


def test_node_whose_clock_went_back_outdoes_its_earlier_run() -> None:
    scene = Scene("a", "b", "c", seeds=("a",))
    scene.acquaint()
    del scene.nodes["b"]
    again = scene.start("b", life=2, incarnation=0)
    scene.let_pass(3)
    assert again.identity.incarnation == 11
    assert scene.nodes["a"].table["b"].run == run_of("b", 2)
    assert again.twin(scene.now_ns) is None
    scene.let_pass(10)
    assert {scene.status("b", at=name) for name in "abc"} == {"alive"}


def test_farewell_is_passed_on_and_nothing_is_said_after_it() -> None:
    scene = Scene("a", "b", "c", "d")
    scene.acquaint()
    leaving = scene.nodes["a"]
    leaving.leave(scene.now_ns)
    leaving.leave(scene.now_ns)
    scene.carry()
    assert {scene.status("a", at=name) for name in "bcd"} == {"left"}
    assert sorted(scene.events) == [(name, "vanished", "a") for name in "bcd"]
    assert scene.tell("a", "b", PacketKind.PING) == []
    leaving.tick(scene.now_ns + 100 * SECOND_NS)
    assert scene.sent("a") == []
    assert scene.nodes["b"].table.lost() == []


def test_fleet_meets_through_its_seeds() -> None:
    names = [f"n{number:02}" for number in range(30)]
    scene = Scene(*names, seeds=("n00", "n01", "n00"))
    scene.let_pass(8)
    assert {node.table.present_count for node in scene.nodes.values()} == {30}
    assert len(scene.events) == 30 * 29


def test_node_without_company_tries_three_seeds_and_then_the_missing_one_by_one() -> None:
    seeds = ("s1", "s2", "s3", "s4", "s5")
    scene = Scene("a", seeds=seeds)
    scene.nodes["a"].tick(0)
    greeted = [to for to, packet in scene.sent("a") if packet.kind == PacketKind.SYNC]
    assert len(greeted) == len(set(greeted)) == 3
    scene.tell("a", "s1", PacketKind.STATE, said("s1", MemberStatus.ALIVE))
    scene.now_ns += 3 * SECOND_NS // 2
    scene.nodes["a"].tick(scene.now_ns)
    greeted = [to for to, packet in scene.sent("a") if packet.kind == PacketKind.SYNC]
    assert len(greeted) == 2
    assert greeted[0] == "s1"
    assert greeted[1] in seeds[1:]


def test_partition_heals_without_seeds() -> None:
    scene = Scene(*"abcdef")
    scene.acquaint()
    for node in scene.nodes.values():
        node._next_sync_ns = scene.now_ns
    left, right = tuple("abc"), tuple("def")
    for _ in range(400):  # each side hears itself only
        scene.now_ns += SECOND_NS // 20
        for node in scene.nodes.values():
            node.tick(scene.now_ns)
        for _ in range(6):
            scene.collect()
            packets, scene.under_way = scene.under_way, []
            for sender, to, body in packets:
                if (sender in left) == (to in left):
                    scene.nodes[to].step(sender, body, scene.now_ns)
    assert {scene.status("a", at=name) for name in right} == {"dead"}
    scene.let_pass(40)
    assert {scene.status(of, at=at) for of in "abcdef" for at in "abcdef"} == {"alive"}


def test_who_is_long_gone_is_forgotten() -> None:
    scene = Scene("a", "b", "c", settings=SwimSettings(forget_s=30))
    scene.acquaint()
    scene.nodes["a"]._declare("c", MemberStatus.DEAD, scene.now_ns)
    scene.now_ns += 29 * SECOND_NS
    scene.nodes["a"].tick(scene.now_ns)
    assert scene.status("c", at="a") == "dead"
    scene.now_ns += 2 * SECOND_NS
    scene.nodes["a"].tick(scene.now_ns)
    assert scene.status("c", at="a") == "unknown"


# Comparing.


def test_equal_lists_cost_one_answer() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    digests = scene.nodes["b"].table.digests()
    ((_, back),) = scene.tell("a", "b", PacketKind.SYNC, digests=digests)
    assert back.kind == PacketKind.SYNC_BACK
    assert scene.tell("b", "a", PacketKind.SYNC_BACK, digests=back.digests) == []


def test_comparison_is_bounded_and_comes_to_its_end() -> None:
    scene = Scene("a", "b")
    for number in range(1_000):
        record = SwimUpdate(f"node-{number:04}", 1, MemberStatus.ALIVE, run_of("x"), "10.0.0.1:7946", b"about" * 10)
        scene.nodes["a"].table.take(record, 0)
    scene.sent("a")
    sent = scene.tell("a", "b", PacketKind.SYNC, digests=bytes(DIGESTS_BYTES))
    pages = [packet for _, packet in sent if packet.kind == PacketKind.STATE]
    assert len(pages) == PAGES_COUNT_MAX
    assert all(len(write_packet(packet, KEY)) <= 1024 for _, packet in sent)
    known = [update.node for packet in pages for update in packet.updates]
    assert len(known) == len(set(known)) > 50
    for _ in range(100):
        scene.nodes["b"]._send_sync("a", PacketKind.SYNC)
        scene.carry(rounds=4)
        if scene.nodes["b"].table.present_count == 1_002:
            break
    assert scene.nodes["b"].table.digests() == scene.nodes["a"].table.digests()


# What is refused.


def test_junk_own_words_and_own_name_are_refused_and_counted() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    node = scene.nodes["a"]
    node.step("b", b"junk", 0)
    node.step("b", b"", 0)
    ping = scene.tell("b", "a", PacketKind.PING)[0][1]
    node.step("a", write_packet(ping, KEY), 0)  # b's words from our own name
    scene.tell("a", "a", PacketKind.PING)  # our own run
    assert node.counters.refused_count == 4
    assert scene.sent("a") == []


def test_mesh_that_is_too_small_is_a_bug() -> None:
    with pytest.raises(Bug, match="900"):
        Swim(OwnRecord("a", b"12345678", 1, "", b""), fleet="f", bytes_max=899, choose=lambda _: 0, now_ns=0)


# Twins.


def test_twin_is_found_and_forgotten() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    node = scene.nodes["a"]
    assert node.twin(scene.now_ns) is None
    for _ in range(4):
        scene.now_ns += 2 * SECOND_NS
        # Another run outdoes each of our answers.
        scene.tell("a", "b", PacketKind.PING, said("a", MemberStatus.ALIVE, node.identity.incarnation + 1, life=2))
    assert node.twin(scene.now_ns) == run_of("a", 2)
    assert node.twin(scene.now_ns + 60 * SECOND_NS) is None


def test_late_word_of_an_earlier_run_is_no_twin() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    node = scene.nodes["a"]
    for incarnation in (11, 13):  # it had objected twice just before it ended
        scene.now_ns += 2 * SECOND_NS
        scene.tell("a", "b", PacketKind.PING, said("a", MemberStatus.ALIVE, incarnation, life=2))
    assert node.identity.incarnation == 14
    assert node.twin(scene.now_ns) is None


def test_twins_answer_each_other_once_a_probe() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    node = scene.nodes["a"]
    scene.now_ns += SECOND_NS
    for _ in range(50):
        scene.tell("a", "b", PacketKind.PING, said("a", MemberStatus.ALIVE, node.identity.incarnation + 1, life=2))
    assert node.counters.refuted_count == 1


def test_earlier_run_is_no_twin_and_a_dead_one_is_outdone() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    node = scene.nodes["a"]
    scene.tell("a", "b", PacketKind.PING, said("a", MemberStatus.ALIVE, 5, life=2))
    assert node.identity.incarnation == 10
    scene.now_ns += 2 * SECOND_NS
    scene.tell("a", "b", PacketKind.PING, said("a", MemberStatus.DEAD, 15, life=2))
    assert node.identity.incarnation == 16
    assert node.twin(scene.now_ns) is None


def test_runs_of_our_name_that_are_remembered_are_bounded() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    for life in range(2, 40):
        scene.now_ns += 2 * SECOND_NS
        incarnation = scene.nodes["a"].identity.incarnation + 1
        scene.tell("a", "b", PacketKind.PING, said("a", MemberStatus.ALIVE, incarnation, life=life))
    assert len(scene.nodes["a"].identity._others) == TWINS_COUNT_MAX


def test_highest_incarnation_is_not_exceeded() -> None:
    scene = Scene("a", "b")
    scene.acquaint()
    scene.tell("a", "b", PacketKind.PING, said("a", MemberStatus.DEAD, INCARNATION_MAX))
    assert scene.nodes["a"].identity.incarnation == INCARNATION_MAX


# Settings.


@pytest.mark.parametrize(
    "wrong",
    [
        {"probe_s": 0},
        {"ack_s": -1},
        {"sync_s": float("inf")},
        {"forget_s": "a day"},
        {"ack_s": 1.0},
        {"helpers_count": 17},
        {"helpers_count": -1},
        {"suspicion_s_min": -1.0},
    ],
)
def test_settings_that_cannot_be_say_which(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SwimSettings(**wrong)  # type: ignore[arg-type]


def test_suspicion_takes_longer_in_larger_fleets() -> None:
    settings = SwimSettings(probe_s=0.5)
    assert [settings.suspicion_s(count) for count in (1, 8, 100, 1_000)] == [2.0, 2.5, 4.0, 5.5]
    assert SwimSettings(suspicion_s_min=30).suspicion_s(10) == 30


# Chance: whatever is lost, doubled and mixed up, living nodes come back and nothing breaks.


@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_loss_and_order_ends_in_agreement(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(8)]
    scene = Scene(*names, seeds=("n0",))
    for _ in range(400):
        scene.now_ns += SECOND_NS // 20
        for node in scene.nodes.values():
            node.tick(scene.now_ns)
        scene.collect()
        packets, scene.under_way = scene.under_way, []
        for packet in packets:
            copies = chance.choice([0, 1, 1, 1, 2])
            for _ in range(copies):
                if chance.random() < 0.2:
                    scene.under_way.append(packet)
                else:
                    scene.nodes[packet[1]].step(packet[0], packet[2], scene.now_ns)
        if chance.random() < 0.01:
            name = chance.choice(names)
            life = chance.randrange(2, 90)
            scene.start(name, life=life, incarnation=chance.randrange(100))
    scene.let_pass(60)
    assert {node.table.present_count for node in scene.nodes.values()} == {8}
    for node in scene.nodes.values():
        for name in names:
            assert node.table[name].rank == scene.nodes[name].identity.record.rank
