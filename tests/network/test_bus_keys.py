"""Whose keys are believed on a bus, and who may publish where. The receiver is node b at delivery/north."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, write_structured
from stigmergy.bus.port import BusMessage
from stigmergy.bus.presence import PRESENT
from stigmergy.bus.signatures import Identity, read_signed, sign_batch
from stigmergy.bus.tells import TellAcknowledgement, TellFrame, TellItem, write_tells
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.network.bus_keys import BusKeys, KeptNode, Rule, owned, signer_of

ROOT = "delivery/north"
SMALL_ORDER = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")


def signer(name: str, key: str = "", *, passing: bool = False) -> Identity:
    """A node by its short name, or a client; with another key than its own if that is named."""
    full = name if "/" in name else f"{ROOT}/{name}"
    return Identity(full, Ed25519Signer((key or full).encode().ljust(32)[:32]), passing)


def key_of(name: str) -> bytes:
    return signer(name).signer.public_key


class Receiver:
    def __init__(self, **options: Any) -> None:
        self.now_s = 0.0
        self.kept: list[KeptNode] = []
        me = signer("b")
        options.setdefault("keep", self.kept.append)
        self.keys = BusKeys(me.name, me.signer.public_key, Ed25519Verifier(), lambda: self.now_s, **options)

    def hear(self, topic: str, payload: bytes = b"\x01", by: Identity | None = None, **options: Any) -> str:
        """Why it is refused; empty if it is taken."""
        message = BusMessage(f"{ROOT}/{topic}" if not topic.startswith("/") else topic[1:], payload, **options)
        return self.keys.check(*read_signed(message if by is None else sign_batch([message], by)[0]))

    def announce(self, by: Identity | None, node: str, **what: Any) -> str:
        event = CloudEvent("1", "/x", PRESENT, datacontenttype=JSON, data={"node": node, "run": "1", **what})
        topic = f"nodes/{node}/presence"
        return self.hear(topic, write_structured(event), by, content_type=STRUCTURED)


EVENTS = "agents/Drone/D-17/events/battery"


@pytest.mark.parametrize(
    ("topic", "rule", "name"),
    [
        ("f/s/agents/Drone/D-17/commands", Rule.ANYBODY, "Drone/D-17"),
        ("f/s/agents/Drone/D-17/inputs", Rule.ANYBODY, "Drone/D-17"),
        ("f/s/agents/Drone/D%2E17/events/a/b", Rule.RUNNER, "Drone/D.17"),
        ("f/s/agents/Drone/D-17/answers", Rule.RUNNER, "Drone/D-17"),
        ("f/s/agents/Drone/D-17/states", Rule.RUNNER, "Drone/D-17"),
        ("f/s/agents/Drone/D-17/tells", Rule.SENDER, "Drone/D-17"),
        ("f/s/nodes/a/presence", Rule.NODE, "f/s/a"),
        ("f/s/nodes/a/refusals", Rule.NODE, "f/s/a"),
        ("f/s/nodes/a/published/op", Rule.NODE, "f/s/a"),
        ("f/s/nodes/a/acknowledgements", Rule.SENDER, "f/s/a"),
        ("f/s/nodes/a/history", Rule.ANYBODY, "f/s/a"),
        ("f/s/uplink/a", Rule.NODE, "f/s/a"),
        ("f/s/uplink/a/routed", Rule.NODE, "f/s/a"),
        ("f/s/uplink/a/routed-down", Rule.COLLECTOR, "f/s/a"),
        ("f/s/uplink/a/marks", Rule.COLLECTOR, "f/s/a"),
        ("f/s/mesh/b/a", Rule.NODE, "f/s/a"),
        ("f/s/mesh/blobs:b/a", Rule.NODE, "f/s/a"),
    ],
)
def test_every_topic_of_a_fleet_has_its_rule(topic: str, rule: Rule, name: str) -> None:
    found = owned(topic)
    assert found is not None
    assert (found.rule, found.name) == (rule, name)


def test_topics_of_devices_are_nobodys() -> None:
    for topic in ("agents/7/battery", "sensor/7/raw", "a", "delivery/north/other/x", "f/s/agents/Drone/D.%zz/events/x"):
        assert owned(topic) is None


def test_unsigned_is_taken_until_a_node_that_signs_is_known() -> None:
    receiver = Receiver()
    assert receiver.hear(EVENTS) == ""
    assert receiver.hear("uplink/a") == ""
    assert receiver.announce(signer("a"), "a", agents=["Drone/D-17"]) == ""
    assert "not signed, and delivery/north/a runs Drone/D-17" in receiver.hear(EVENTS)
    for topic in ("uplink/a", "uplink/a/routed", "nodes/a/refusals", "mesh/b/a", "nodes/a/published/op"):
        assert "not signed" in receiver.hear(topic)
    assert receiver.hear("agents/Drone/D-18/events/battery") == ""  # of an older node, perhaps
    for topic in ("commands", "inputs", "queries"):
        assert receiver.hear(f"agents/Drone/D-17/{topic}") == ""
    assert receiver.hear("/sensors/7/raw") == ""


def test_a_node_that_runs_everything_is_known_to_sign_for_its_kinds() -> None:
    receiver = Receiver()
    assert receiver.announce(signer("a"), "a", everything=True, kinds=["Drone"]) == ""
    assert "not signed" in receiver.hear(EVENTS)
    assert receiver.hear("agents/Cart/c1/events/place") == ""
    assert receiver.announce(signer("b"), "b", everything=True, kinds=["Cart"]) == ""
    assert receiver.hear("agents/Cart/c1/events/place") == "", "a gateway has copies of what older devices run"


def test_a_name_belongs_to_the_key_that_was_first_heard_and_that_is_kept() -> None:
    receiver = Receiver()
    assert receiver.hear("uplink/a", by=signer("a")) == ""
    assert "known here with another key" in receiver.hear("uplink/a", by=signer("a", "stolen"))
    assert receiver.kept == [KeptNode(f"{ROOT}/a", key_of("a").hex())]
    later = Receiver(kept=receiver.kept)
    assert "known here with another key" in later.hear("uplink/a", by=signer("a", "stolen"))
    assert later.hear("uplink/a", by=signer("a")) == ""


def test_old_key_after_a_rotation() -> None:
    """With peers the new key takes the name when the old one is no peer any more; the old one is refused from then."""
    kept = [KeptNode(f"{ROOT}/a", key_of("a").hex())]
    receiver = Receiver(trusted=[key_of("a-new")], kept=kept)
    new = signer("a", f"{ROOT}/a-new")
    assert receiver.hear("uplink/a", by=new) == ""
    assert "not among the peers" in receiver.hear("uplink/a", by=signer("a"))
    # Without peers the operator has taken the line out of the file.
    other = Receiver(kept=[])
    assert other.hear("uplink/a", by=new) == ""
    assert "another key" in other.hear("uplink/a", by=signer("a"))


def test_a_key_that_ends_with_its_process_frees_its_name_at_its_end_and_not_before() -> None:
    receiver = Receiver()
    assert receiver.announce(signer("a", passing=True), "a") == ""
    next_run = signer("a", "of the next run", passing=True)
    assert "another key" in receiver.announce(next_run, "a")
    assert receiver.announce(signer("a", passing=True), "a", online=False) == ""
    assert receiver.announce(next_run, "a") == ""
    assert receiver.kept == []
    receiver.now_s = 1_000.0  # one that died without a word
    assert receiver.announce(signer("a", "third", passing=True), "a") == ""


def test_with_peers_only_their_keys_count() -> None:
    receiver = Receiver(trusted=[key_of("a")])
    assert receiver.hear("uplink/a", by=signer("a")) == ""
    assert receiver.hear("mesh/a/b", by=signer("b")) == ""
    assert "not among the peers" in receiver.hear("uplink/c", by=signer("c"))
    assert "not among the peers" in receiver.announce(signer("c"), "c", agents=["Drone/D-17"])


def test_small_order_keys_are_refused() -> None:
    receiver = Receiver()

    class Small(Ed25519Signer):
        @property
        def public_key(self) -> bytes:
            return SMALL_ORDER

    why = receiver.hear("uplink/a", by=Identity(f"{ROOT}/a", Small(b"1" * 32)))
    assert "small order" in why
    assert receiver.kept == []


def test_a_malleable_signature_is_refused() -> None:
    """The same signature with its scalar plus the group's order is another text for the same equation."""
    order = 2**252 + 27742317777372353535851937790883648493
    message = BusMessage(f"{ROOT}/uplink/a", b"\x01")
    bare, proof = read_signed(sign_batch([message], signer("a"))[0])
    assert proof is not None
    assert Receiver().keys.check(bare, proof) == ""
    scalar = int.from_bytes(proof.signature[32:], "little") + order
    other = msgspec.structs.replace(proof, signature=proof.signature[:32] + scalar.to_bytes(32, "little"))
    assert "not one of this message" in Receiver().keys.check(bare, other)


def test_a_valid_key_cannot_publish_as_agents_of_another_node() -> None:
    receiver = Receiver()
    receiver.announce(signer("a"), "a", agents=["Drone/D-17", "Drone/X-*"])
    receiver.announce(signer("c"), "c", agents=["Cart/*"])
    receiver.announce(signer("d"), "d", everything=True)
    for topic in (EVENTS, "agents/Drone/D-17/answers", "agents/Drone/D-17/states", "agents/Drone/X-3/events/b"):
        assert receiver.hear(topic, by=signer("a")) == ""
        assert "a runs Drone/" in receiver.hear(topic, by=signer("c"))
        assert "a runs Drone/" in receiver.hear(topic, by=signer("d")), "naming goes before everything"
    assert "does not run Drone/D-20" in receiver.hear("agents/Drone/D-20/events/b", by=signer("c"))
    assert receiver.hear("agents/Drone/D-20/events/b", by=signer("d")) == ""


def test_a_node_that_claims_what_another_has_gets_it_when_that_one_has_gone() -> None:
    receiver = Receiver()
    receiver.announce(signer("a"), "a", agents=["Drone/D-17"])
    assert receiver.announce(signer("c"), "c", agents=["Drone/D-17"]) == ""  # presence tells of the conflict
    assert "was here before" in receiver.hear(EVENTS, by=signer("c"))
    assert receiver.hear(EVENTS, by=signer("a")) == ""
    receiver.announce(signer("a"), "a", agents=["Drone/D-17"], online=False)
    assert receiver.hear(EVENTS, by=signer("c")) == ""


def test_what_was_known_before_a_restart_is_known_before_anything_is_heard() -> None:
    """A broker delivers what it held before the announcements that it has kept."""
    first = Receiver()
    first.announce(signer("a"), "a", agents=["Drone/D-17"])
    receiver = Receiver(kept=first.kept)
    assert "not signed" in receiver.hear(EVENTS)
    assert receiver.hear(EVENTS, by=signer("a")) == ""
    receiver.announce(signer("c"), "c", agents=["Drone/D-17"])
    assert "was here before" in receiver.hear(EVENTS, by=signer("c"))
    receiver.now_s = 100.0  # Node a is not there any more: it was taken over while this node was away.
    assert receiver.hear(EVENTS, by=signer("c")) == ""


def test_a_gateway_answers_for_agents_of_other_levels_and_not_for_those_of_nodes_here() -> None:
    receiver = Receiver()
    receiver.announce(signer("a"), "a", agents=["Drone/D-17"])
    receiver.announce(signer("gw"), "gw", agents=["Site/main"], routes=True)
    assert receiver.hear("agents/Drone/far/answers", by=signer("gw")) == ""
    assert "does not run" in receiver.hear("agents/Drone/far/events/x", by=signer("gw"))
    assert "a runs Drone/D-17" in receiver.hear("agents/Drone/D-17/answers", by=signer("gw"))


def tells(node: str) -> bytes:
    return write_tells(TellFrame("delivery", "north", node, 0, 7, 1, 0, 1, [TellItem(b"\x80", 1)]))


def acknowledged(node: str) -> bytes:
    return write_tells(TellAcknowledgement("delivery", "north", node, "Drone/D-17", 0, 7, 1, durable=1))


@pytest.mark.parametrize(
    ("topic", "frame"), [("agents/Drone/D-17/tells", tells), ("nodes/x/acknowledgements", acknowledged)]
)
def test_frames_are_signed_by_the_node_that_they_name(topic: str, frame: Callable[[str], bytes]) -> None:
    receiver = Receiver()
    assert receiver.hear(topic, frame("a")) == ""
    assert receiver.hear(topic, frame("a"), by=signer("a")) == ""
    assert "not signed, and delivery/north/a" in receiver.hear(topic, frame("a"))
    assert "signs a frame of delivery/north/a" in receiver.hear(topic, frame("a"), by=signer("c"))
    assert receiver.hear(topic, frame("old")) == ""  # of a version that does not sign


def test_what_a_collector_says_belongs_to_the_first_one() -> None:
    receiver = Receiver()
    for topic in ("uplink/b/marks", "uplink/b/routed-down"):
        assert receiver.hear(topic) == ""
        assert receiver.hear(topic, by=signer("hub")) == ""
        assert "not signed" in receiver.hear(topic)
        assert "did so far" in receiver.hear(topic, by=signer("a"))


def test_with_require_everything_is_signed_by_somebody_who_is_listed() -> None:
    client = signer("clients/op")
    receiver = Receiver(trusted=[key_of("a")], clients=[client.signer.public_key], requires=True)
    for topic in ("commands", "inputs", "queries"):
        assert "requires signatures" in receiver.hear(f"agents/Drone/D-17/{topic}")
        assert receiver.hear(f"agents/Drone/D-17/{topic}", by=client) == ""
        assert receiver.hear(f"agents/Drone/D-17/{topic}", by=signer("a")) == ""
        assert "not among the clients" in receiver.hear(f"agents/Drone/D-17/{topic}", by=signer("clients/other"))
    assert "requires signatures" in receiver.hear(EVENTS)
    assert "requires signatures" in receiver.hear("nodes/old/presence")


def test_a_client_never_speaks_for_a_node_or_agent() -> None:
    receiver = Receiver()
    for topic in (EVENTS, "uplink/a", "nodes/a/presence", "agents/Drone/D-17/tells", "uplink/b/marks"):
        assert "only nodes publish there" in receiver.hear(topic, by=signer("clients/op"))
    assert receiver.hear("agents/Drone/D-17/commands", by=signer("clients/op")) == ""


def test_nothing_unsigned_makes_this_node_leave_the_bus_and_twins_are_still_heard() -> None:
    receiver = Receiver()
    receiver.announce(signer("b"), "b", journal="one", epoch=3, since="2026")
    assert "would make delivery/north/b leave" in receiver.announce(None, "b", journal="two", epoch=9)
    assert receiver.announce(None, "b", journal="two", epoch=1) == ""
    assert receiver.announce(None, "b", online=False) == ""  # the will of an earlier version
    assert receiver.announce(signer("b", "another disk"), "b", journal="two", epoch=9) == ""
    assert "another key" in receiver.hear("mesh/a/b", by=signer("b", "another disk"))
    strict = Receiver(trusted=[key_of("a")])
    assert "not among the peers" in strict.announce(signer("b", "another disk"), "b", journal="two", epoch=9)


def test_removed_announcements_are_empty_and_free_the_agents() -> None:
    receiver = Receiver()
    receiver.announce(signer("a"), "a", agents=["Drone/D-17"])
    receiver.announce(signer("c"), "c", agents=["Drone/D-17"])
    assert receiver.hear("nodes/a/presence", b"") == ""
    assert receiver.hear(EVENTS, by=signer("c")) == ""
    assert "not signed" in receiver.hear(EVENTS)
    assert "not signed" in receiver.hear(EVENTS, b"")


def test_the_name_of_a_node_is_that_of_its_topics() -> None:
    assert signer_of("delivery", "north", "D.17") == "delivery/north/D%2E17"


def test_a_made_up_signature_gives_nobody_a_name() -> None:
    receiver = Receiver()
    bare, proof = read_signed(sign_batch([BusMessage(f"{ROOT}/uplink/a", b"\x01")], signer("a", "stranger"))[0])
    assert proof is not None
    assert "not one of this message" in receiver.keys.check(
        bare, msgspec.structs.replace(proof, signature=proof.signature[:-1] + b"\x00")
    )
    assert receiver.kept == []
    assert receiver.hear("uplink/a", by=signer("a")) == ""
