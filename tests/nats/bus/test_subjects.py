"""Topics and subjects stand for each other, and patterns mean the same in both."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stigmergy.base.errors import Malformed
from stigmergy.bus.port import matches
from stigmergy.nats.bus.session import place_of
from stigmergy.nats.bus.subjects import covers, filters_of, prune, size_of, subject_of, topic_of

LEVELS = some.sampled_from(["a", "b", "a.b", ".", "", "..", "é", "x%2E"])
TOPICS = some.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
PATTERNS = some.lists(LEVELS | some.just("+"), min_size=1, max_size=4).flatmap(
    lambda levels: some.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)


@given(TOPICS)
def test_every_topic_has_one_subject_and_back(topic: str) -> None:
    assert topic_of(subject_of(topic)) == topic


@given(PATTERNS.filter(bool), TOPICS)
def test_filters_match_what_their_pattern_matches(pattern: str, topic: str) -> None:
    assert any(covers(one, subject_of(topic)) for one in filters_of(pattern)) == matches(pattern, topic)


@pytest.mark.parametrize(
    ("topic", "subject"), [("a/b", "a.b"), ("a.b/c", "a//b.c"), ("a//b", "a./.b"), ("/a", "/.a"), ("a/", "a./")]
)
def test_subjects_are_those_that_nats_gives_topics_of_mqtt(topic: str, subject: str) -> None:
    assert subject_of(topic) == subject


@pytest.mark.parametrize("topic", ["a b", "a/*", ">/a", "a/\u3000"])
def test_what_nats_cannot_carry_is_refused(topic: str) -> None:
    with pytest.raises(Malformed, match="NATS"):
        subject_of(topic)


def test_what_others_cover_is_left_out() -> None:
    assert prune(["a.b", "a.*", "b.>", "b.c.d", "a.*", "c"]) == ["a.*", "b.>", "c"]
    assert not covers("a.*", "a.>")
    assert not covers("a.>", "a")
    assert covers(">", "a.*.>")


def test_place_is_found_with_and_without_a_domain() -> None:
    assert place_of("$JS.ACK.STREAM.consumer.1.42.7.1700000000000000000.0") == 42
    assert place_of("$JS.ACK.hub.ACCHASH.STREAM.consumer.1.42.7.1700000000000000000.0.token") == 42


def test_the_size_of_a_message_is_what_goes_over_the_wire() -> None:
    assert size_of(b"payload", {}) == 7
    headers = {"Nmqtt-RTopic": "küche/licht"}
    written = b"NATS/1.0\r\n" + b"Nmqtt-RTopic: " + "küche/licht".encode() + b"\r\n\r\n"
    assert size_of(b"payload", headers) == len(written) + 7
