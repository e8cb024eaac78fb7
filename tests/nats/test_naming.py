"""Names on NATS: any text becomes one token, and no two texts the same."""

import re

from hypothesis import given
from hypothesis import strategies as st

from stigmergy.nats import naming

TOKEN = re.compile(r"[A-Za-z0-9_-]*")


def test_what_people_write_stays_readable() -> None:
    assert naming.token("delivery-2") == "delivery-2"
    assert naming.token("Züri/a.b_c") == "Z_C3_BCri_2Fa_2Eb_5Fc"


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_two_texts_have_the_same_token(one: str, other: str) -> None:
    assert TOKEN.fullmatch(naming.token(one))
    assert (naming.token(one) == naming.token(other)) == (one == other)


def test_every_name_can_be_a_name() -> None:
    fleet = "a fleet.of > *"
    streams = [
        naming.bus_stream(fleet),
        naming.retained_stream(fleet),
        naming.log_stream(fleet, 0, 3),
        naming.ledger_stream(fleet),
        naming.uplink_stream(fleet),
        naming.snapshots_bucket(fleet),
        naming.copies_bucket(fleet),
        naming.cluster_bucket(fleet),
    ]
    assert all(TOKEN.fullmatch(name) for name in streams)
    assert len({*streams}) == len(streams)
    subjects = [
        naming.log_subject(fleet, 0, 3),
        naming.ledger_subject(fleet),
        naming.tells_subject(fleet, 3),
        naming.control_subject(fleet, 3),
    ]
    assert all(TOKEN.fullmatch(part) and part for subject in subjects for part in subject.split("."))
    assert all(subject.startswith("stig.") for subject in subjects)


def test_streams_of_one_fleet_do_not_meet_those_of_another() -> None:
    assert naming.log_stream("a", 1, 2) != naming.log_stream("a_1", 2, 2)
    assert naming.log_stream("a_1", 2, 2) != naming.log_stream("a", 1, 2)
