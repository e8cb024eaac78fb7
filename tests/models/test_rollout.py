"""The rules of a rollout: shares, sums that are told again, verdicts, and records that are not gone back to."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as draw

from stigmergy.agents.codec import encode
from stigmergy.base.errors import ConfigError, ModelRefused
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.models.rollout import (
    CANARY,
    STABLE,
    CountsReport,
    RolloutRule,
    VersionCounts,
    VersionRecord,
    in_canary,
    judge,
    read_counts,
    read_record,
    total,
    write_counts,
    write_record,
)
from stigmergy.models.rollout_agent import CountsHeard

RULE = RolloutRule(asks_min=100, judged_min=10)
SIGNER, OTHER = Ed25519Signer(bytes(range(32))), Ed25519Signer(bytes(range(1, 33)))
TRUSTED, VERIFIER = [SIGNER.public_key], Ed25519Verifier()


@given(draw.text(max_size=20), draw.floats(0.01, 0.99))
def test_the_canary_has_its_share_of_the_agents_and_is_always_the_same(rollout: str, share: float) -> None:
    count = 2_000
    agents = [f"GasSensor/s{number}" for number in range(count)]
    chosen = [agent for agent in agents if in_canary(rollout, agent, share)]
    assert abs(len(chosen) - count * share) <= 5.5 * math.sqrt(count * share * (1 - share)) + 1
    assert chosen == [agent for agent in agents if in_canary(rollout, agent, share)]
    larger = {agent for agent in agents if in_canary(rollout, agent, min(1.0, share * 1.5))}
    assert larger.issuperset(chosen), "who is in stays in when the share grows"


def test_another_rollout_has_another_canary() -> None:
    agents = [f"GasSensor/s{number}" for number in range(2_000)]
    first, second = ([a for a in agents if in_canary(f"gas/{n}", a, 0.05)] for n in (1, 2))
    assert len(set(first) & set(second)) < len(first) / 2
    assert not any(in_canary("gas/1", agent, 0.0) for agent in agents)
    assert all(in_canary("gas/1", agent, 1.0) for agent in agents)


counts = draw.builds(
    VersionCounts,
    asks=draw.integers(0, 10_000),
    failed=draw.integers(0, 100),
    compared=draw.integers(0, 10_000),
    differed=draw.integers(0, 100),
    latency_s=draw.integers(0, 1_000).map(float),
    judged=draw.integers(0, 500),
    wrong=draw.integers(0, 100),
)


@given(draw.lists(draw.tuples(draw.sampled_from("abc"), counts), max_size=12), draw.randoms())
def test_reports_add_up_in_any_order_however_often_they_come(reports: list[tuple[str, Any]], random: Any) -> None:
    """A source tells sums, which only grow: whichever comes again or late changes nothing."""
    grown: dict[str, VersionCounts] = {}
    told: list[tuple[str, VersionCounts]] = []
    for source, more in reports:
        grown[source] = grown.get(source, VersionCounts()).plus(more)
        told.append((source, grown[source]))
    repeated = [*told, *random.choices(told, k=len(told))] if told else []
    random.shuffle(repeated)
    held: dict[str, VersionCounts] = {}
    for source, counted in repeated:
        held[source] = held.get(source, VersionCounts()).upto(counted)
    assert total(held.values()) == total(grown.values())


@given(counts, counts, draw.booleans(), draw.booleans())
def test_a_verdict_is_one_of_three_and_says_why(a: VersionCounts, b: VersionCounts, over: bool, late: bool) -> None:
    found = judge(RULE, "canary", a, b, is_over=over, is_late=late)
    assert found.reason
    if found.then == "go on":
        assert over
        assert b.asks >= RULE.asks_min
    if late:
        assert found.then != "wait" or over
    worse = judge(RULE, "canary", a, b.plus(VersionCounts(judged=10**7, wrong=10**7)), is_over=over, is_late=late)
    if not a.judged or a.wrong / a.judged < 0.9:
        assert worse.then == "roll back"


@pytest.mark.parametrize(
    ("stage", "stable", "candidate", "why"),
    [
        ("canary", {"judged": 100, "wrong": 5}, {"judged": 10, "wrong": 1}, "10.0% of its 10 judged answers are false"),
        ("canary", {"judged": 1, "wrong": 1}, {"judged": 10, "wrong": 10}, "0.0% of the old version's"),
        ("shadow", {"asks": 100}, {"asks": 10, "failed": 1}, "the fallback answered 10.0% of its 10 questions"),
        ("shadow", {}, {"asks": 100, "compared": 100, "differed": 6}, "6.0% of 100 answers differ"),
        ("canary", {"asks": 100, "latency_s": 1.0}, {"asks": 100, "latency_s": 1.6}, "16.00 ms on average"),
    ],
)
def test_what_is_too_bad(stage: Any, stable: dict[str, Any], candidate: dict[str, Any], why: str) -> None:
    found = judge(RULE, stage, VersionCounts(**stable), VersionCounts(**candidate))
    assert found.then == "roll back"
    assert why in found.reason


@pytest.mark.parametrize(
    ("stage", "stable", "candidate"),
    [
        ("canary", {"judged": 100, "wrong": 9}, {"judged": 10, "wrong": 1}),
        ("canary", {}, {"judged": 9, "wrong": 9}),
        ("canary", {}, {"asks": 100, "compared": 100, "differed": 100}),
        ("shadow", {}, {"asks": 99, "compared": 99, "differed": 99}),
        ("canary", {"asks": 99, "latency_s": 1.0}, {"asks": 100, "latency_s": 9.0}),
    ],
)
def test_what_is_not(stage: Any, stable: dict[str, Any], candidate: dict[str, Any]) -> None:
    assert judge(RULE, stage, VersionCounts(**stable), VersionCounts(**candidate)).then == "wait"


def test_a_stage_ends_well_with_enough_answers_and_not_before() -> None:
    few, enough = VersionCounts(asks=99, compared=99), VersionCounts(asks=100, compared=100)
    for stage in ("shadow", "canary"):
        assert judge(RULE, stage, enough, few, is_over=True).then == "wait"
        assert judge(RULE, stage, enough, enough).then == "wait"
        assert judge(RULE, stage, enough, enough, is_over=True).then == "go on"
        assert judge(RULE, stage, enough, few, is_over=True, is_late=True).then == "roll back"


@pytest.mark.parametrize(
    "wrong",
    [
        {"canary": 1.5},
        {"shadow_s": -1},
        {"asks_min": 0},
        {"report_s": 0},
        {"latency_ratio_max": 0},
        {"false_positives_max": float("nan")},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RolloutRule(**wrong)


RECORD = VersionRecord("city", "gas-level", 7, "1.2.0", "1.3.0", "canary", "gas-level/5", 0.5)


def test_a_record_comes_back_and_gives_each_agent_its_arm() -> None:
    found = read_record(write_record(RECORD, SIGNER), "city", "gas-level", TRUSTED, VERIFIER, 7)
    assert found == RECORD
    assert {found.arm_of(f"GasSensor/{number}") for number in range(50)} == {STABLE, CANARY}
    settled = VersionRecord("city", "gas-level", 8, "1.3.0")
    assert settled.arm_of("GasSensor/1") == ""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (write_record(RECORD, OTHER), "not trusted"),
        (write_record(VersionRecord("town", "gas-level", 7, "1.2.0"), SIGNER), "it was moved"),
        (write_record(VersionRecord("city", "smoke", 7, "1.2.0"), SIGNER), "it was moved"),
        (write_record(VersionRecord("city", "gas-level", 6, "1.2.0"), SIGNER), "it is not gone back to"),
        (write_record(VersionRecord("city", "gas-level", 7, "newest"), SIGNER), "not three numbers"),
        (b"", "cannot be read"),
        (b"\xc1", "cannot be read"),
    ],
)
def test_a_record_that_is_not_to_be_believed_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ModelRefused, match=why):
        read_record(data, "city", "gas-level", TRUSTED, VERIFIER, revision_min=7)


@given(draw.integers(0, 10_000), draw.integers(1, 255))
def test_a_record_with_a_changed_byte_is_refused(place: int, change: int) -> None:
    data = bytearray(write_record(RECORD, SIGNER))
    data[place % len(data)] ^= change
    with pytest.raises(ModelRefused):
        read_record(bytes(data), "city", "gas-level", TRUSTED, VERIFIER)


REPORT = CountsReport("city", "gas-level", "north/1", 7, VersionCounts(asks=3), VersionCounts(asks=2, wrong=1))


def test_counts_come_back() -> None:
    assert read_counts(write_counts(REPORT, SIGNER), "city", "gas-level", TRUSTED, VERIFIER) == REPORT


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (write_counts(REPORT, OTHER), "not trusted here; add it to model_keys or peers"),
        (write_counts(msgspec.structs.replace(REPORT, fleet="town"), SIGNER), "it was moved"),
        (write_counts(msgspec.structs.replace(REPORT, model="smoke"), SIGNER), "it was moved"),
        (write_record(RECORD, SIGNER), "damaged or forged"),
        (encode(CountsHeard(source="a", revision=7, stable=VersionCounts(), candidate=VersionCounts())), "not signed"),
        (b"", "not signed, or damaged"),
    ],
)
def test_counts_that_are_not_to_be_believed_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(ModelRefused, match=why):
        read_counts(data, "city", "gas-level", TRUSTED, VERIFIER)


@given(draw.integers(0, 10_000), draw.integers(1, 255))
def test_counts_with_a_changed_byte_are_refused(place: int, change: int) -> None:
    data = bytearray(write_counts(REPORT, SIGNER))
    data[place % len(data)] ^= change
    with pytest.raises(ModelRefused):
        read_counts(bytes(data), "city", "gas-level", TRUSTED, VERIFIER)
