"""Topics of uplinks as subjects, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ConfigError, Malformed
from stigmergy.bus.topics import escape
from stigmergy.nats import naming
from stigmergy.nats.bus.subjects import is_covered
from stigmergy.nats.gateway.subjects import check_site, kept_subjects, site_subjects, subject_of, topic_of
from stigmergy.uplink.names import UplinkSource


def test_topics_have_subjects_outside_of_the_fleet() -> None:
    assert subject_of("delivery/north/uplink/gateway") == "stig.delivery.up.north.gateway"
    assert subject_of("delivery/north/uplink/gateway/marks") == "stig.delivery.down.north.gateway"
    assert subject_of("delivery/+/uplink/+") == "stig.delivery.up.*.*"
    assert site_subjects("north") == "stig.*.up.north.>"


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_every_uplink_has_one_subject(fleet: str, site: str, node: str) -> None:
    sender = UplinkSource(escape(fleet), escape(site), escape(node))
    for topic in (sender.topic, sender.marks_topic):
        subject = subject_of(topic)
        assert topic_of(subject) == topic
        assert len(subject.split(".")) == 5
        assert not any(sign in subject for sign in " *>\t\n")


@pytest.mark.parametrize("topic", ["", "a/b", "a/b/agents/c", "a/b/uplink/c/d", "a/b/uplink/c/marks/e"])
def test_other_topics_do_not_go_between_levels(topic: str) -> None:
    with pytest.raises(Malformed, match="not an uplink topic"):
        subject_of(topic)


@pytest.mark.parametrize("subject", ["", "stig.a.up.b", "stig.a.over.b.c", "other.a.up.b.c", "stig.a.up.b.c.d"])
def test_other_subjects_are_none(subject: str) -> None:
    with pytest.raises(Malformed, match="not an uplink subject"):
        topic_of(subject)


def test_what_belongs_to_one_level_stays_there() -> None:
    kept = kept_subjects(["delivery", "agents", "delivery", "a.b"])
    assert kept[:3] == ("delivery.>", "agents.>", "a//b.>")
    assert "stig.*.bus.>" in kept
    assert "$MQTT.>" in kept
    assert not any(subject.startswith(("stig.*.up", "stig.*.down", "$JS")) for subject in kept)


@pytest.mark.parametrize(
    "subject",
    [
        naming.bus_subject("delivery"),
        naming.kept_subject("delivery"),
        naming.parted_subject("delivery", 4),
        naming.log_subject("delivery", 0, 3),
        naming.log_owner_subject("delivery", 0, 3),
        naming.log_grown_subject("delivery", 0, 3),
        naming.snapshots_subject("delivery"),
        naming.ledger_subject("delivery"),
        naming.tells_subject("delivery", 1),
        naming.control_subject("delivery", 1),
    ],
)
def test_every_subject_that_a_stream_or_an_owner_has_stays(subject: str) -> None:
    """Both levels may run the same fleet: a publish would be taken by both, and acknowledged by either."""
    assert is_covered(f"{subject}.more", kept_subjects([]))


@pytest.mark.parametrize("site", ["north", "north-7", "n_7", "N" * 32])
def test_a_site_names_a_domain(site: str) -> None:
    assert check_site(site) == site


@pytest.mark.parametrize("site", ["", "a b", "a.b", "nörd", "a/b", "*", "N" * 33])
def test_a_site_that_cannot(site: str) -> None:
    with pytest.raises(ConfigError, match="JetStream domain"):
        check_site(site)
