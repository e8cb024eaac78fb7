"""Each checker is silent about good evidence, and each has a sentence for evidence that is not."""

import msgspec

from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.shard.commit import Commit, Head, Signature, genesis_of, seal, statement
from stigmergy.shard.commit import EventRun as TimeRun
from stigmergy.sim.checkers import (
    AcknowledgedInput,
    Hold,
    Settling,
    SignedLog,
    TakenMessage,
    ToldPair,
    Watched,
    chain_is_valid,
    everything_makes_progress,
    nothing_acknowledged_is_lost,
    nothing_is_doubled,
    one_holder_at_a_time,
    replicas_converge,
    safe_action_in_time,
    tells_arrive,
)

SECOND = 1_000_000_000
VERIFY = Ed25519Verifier().verify


def test_what_was_acknowledged_must_be_in_the_log_or_declared_as_skipped() -> None:
    told = [AcknowledgedInput("n", "world", number, "Drone/1", b"%d" % number) for number in (1, 2, 3)]
    kept = {("n", "Drone/1", b"1"): None, ("n", "Drone/1", b"3"): None}
    assert nothing_acknowledged_is_lost(told, kept, [("n", "world", 2, 2)]) == []
    (finding,) = nothing_acknowledged_is_lost(told, kept)
    assert "world 2 for Drone/1 was acknowledged and is not in the log" in finding
    assert nothing_acknowledged_is_lost(told, kept, [("other", "world", 2, 2)])
    assert nothing_acknowledged_is_lost(told, kept, [("n", "other", 2, 2)])


def test_what_is_told_arrives_once_and_in_order() -> None:
    told = [b"1", b"2", b"3"]
    good = [
        ToldPair("a/0", "Cart/b", told, told),
        ToldPair("a/0", "Cart/b", told, [b"1", b"3"], given_up=[b"2"]),
        ToldPair("a/0", "Cart/b", told, told, given_up=[b"2"]),
        ToldPair("a/0", "Cart/b", told, [b"1"], owed=[b"2", b"3"]),
    ]
    assert tells_arrive(good) == []
    for taken, word in (
        ([b"1", b"3"], "not taken"),
        ([b"1", b"2", b"2", b"3"], "twice"),
        ([b"2", b"1", b"3"], "order"),
    ):
        assert any(word in finding for finding in tells_arrive([ToldPair("a/0", "Cart/b", told, taken)])), word


def test_no_message_is_taken_twice_or_after_a_later_one() -> None:
    good = [
        TakenMessage("a", "x", 1),
        TakenMessage("b", "x", 1),
        TakenMessage("a", "y", 1),
        TakenMessage("a", "x", 3),
        TakenMessage("a", "x", 4),
    ]
    assert nothing_is_doubled(good) == []
    assert "twice" in nothing_is_doubled([*good, TakenMessage("a", "x", 4)])[0]
    assert "after 4" in nothing_is_doubled([*good, TakenMessage("a", "x", 2)])[0]


def test_replicas_of_one_object_are_equal_and_those_of_another_need_not_be() -> None:
    same = {"Light.phase/1": {"a": b"1", "b": b"1"}, "Light.phase/2": {"a": b"2"}}
    assert replicas_converge(same) == []
    (finding,) = replicas_converge({**same, "Light.phase/3": {"a": b"1", "b": b"1", "c": b"2"}})
    assert "Light.phase/3" in finding
    assert "a, b" in finding


def test_no_two_hold_the_same_thing_at_the_same_time() -> None:
    good = [Hold("cell", "a", 1, 0, 10), Hold("cell", "b", 2, 10, 20), Hold("other", "c", 1, 0, 99)]
    assert one_holder_at_a_time(good) == []
    assert "a (token 1)" in one_holder_at_a_time([*good, Hold("cell", "c", 3, 9, 12)])[0]
    # A long hold overlaps one that is not its neighbour.
    long = [Hold("cell", "a", 1, 0, 100), Hold("cell", "a", 1, 5, 6), Hold("cell", "b", 2, 50, 60)]
    assert one_holder_at_a_time(long)
    # The same holder may renew; a hold that never began overlaps nothing.
    assert (
        one_holder_at_a_time([Hold("cell", "a", 1, 0, 10), Hold("cell", "a", 1, 5, 15), Hold("cell", "b", 2, 7, 7)])
        == []
    )


def test_who_holds_later_has_a_higher_token() -> None:
    assert "token 1" in one_holder_at_a_time([Hold("cell", "a", 2, 0, 10), Hold("cell", "b", 1, 20, 30)])[0]


def watched(**changes: object) -> Watched:
    usual = Watched(
        agent="Drone/1",
        after_ns=2 * SECOND,
        fresh_ns=[(SECOND, SECOND)],
        maybe_ns=[SECOND],
        safe_ns=[3 * SECOND],
        up_ns=[(0, 60 * SECOND)],
    )
    return msgspec.structs.replace(usual, **changes)


def test_whoever_is_silent_is_made_safe_in_time() -> None:
    assert safe_action_in_time([watched()]) == []
    assert "Drone/1: silent since 1000 ms" in safe_action_in_time([watched(safe_ns=[])])[0]
    assert safe_action_in_time([watched(safe_ns=[4 * SECOND])])
    # The safe action of an earlier silence does not count.
    assert safe_action_in_time([watched(safe_ns=[2 * SECOND])])


def test_a_silence_that_is_not_certain_is_not_judged() -> None:
    assert safe_action_in_time([watched(safe_ns=[], maybe_ns=[SECOND, 2 * SECOND])]) == []
    assert safe_action_in_time([watched(safe_ns=[], up_ns=[(0, 2 * SECOND)])]) == []
    assert safe_action_in_time([watched(safe_ns=[], fresh_ns=[(n * SECOND, n * SECOND) for n in range(1, 60)])]) == []
    # What was heard at some moment between 1 s and 5 s must be followed by a safe action between 3 s and 7.3 s.
    unclear = watched(fresh_ns=[(SECOND, 5 * SECOND)], safe_ns=[4 * SECOND])
    assert safe_action_in_time([unclear]) == []
    assert safe_action_in_time([msgspec.structs.replace(unclear, safe_ns=[8 * SECOND])])


def test_what_may_have_been_heard_after_a_start_ends_the_silence_since_the_start() -> None:
    # Started at 3 s; what became durable at 4 s and 5 s may have been heard before the start or after it.
    told = watched(fresh_ns=[(0, 4 * SECOND), (SECOND, 5 * SECOND), (3 * SECOND, 3 * SECOND)], maybe_ns=[])
    assert safe_action_in_time([msgspec.structs.replace(told, safe_ns=[6 * SECOND])]) == []
    (finding,) = safe_action_in_time([msgspec.structs.replace(told, safe_ns=[8 * SECOND])])
    assert finding == "Drone/1: silent since 5000 ms, not made safe by 7300 ms"
    assert safe_action_in_time([msgspec.structs.replace(told, safe_ns=[])])


def signed_log() -> SignedLog:
    signer = Ed25519Signer(bytes(32))
    commits, digests, signatures = list[Commit](), list[bytes](), list[Signature]()
    before = genesis_of("fleet", 0)
    for position in (1, 2, 3):
        commit = Commit(1, 1, 0, position, 1, before, [TimeRun(0, 0, "")], [])
        before = seal(commit).digest
        heads = [Head(0, position, 1, before)]
        commits.append(commit)
        digests.append(before)
        signatures.append(Signature(1, signer.public_key, heads, signer.sign(statement(heads))))
    return SignedLog("n", "fleet", 0, commits, digests, signatures, signer.public_key)


def test_a_chain_is_cited_and_signed_all_the_way() -> None:
    log = signed_log()
    replace = msgspec.structs.replace
    assert chain_is_valid(log, VERIFY) == []
    assert "does not follow" in chain_is_valid(replace(log, digests=[bytes(32), *log.digests[1:]]), VERIFY)[0]
    assert "stands where" in chain_is_valid(replace(log, commits=[*log.commits[1:], log.commits[0]]), VERIFY)[0]
    forged = replace(log.signatures[0], value=bytes(64))
    assert "does not verify" in chain_is_valid(replace(log, signatures=[forged]), VERIFY)[0]
    assert "another key" in chain_is_valid(replace(log, key=bytes(32)), VERIFY)[0]
    other = chain_is_valid(replace(log, digests=[*log.digests[:2], bytes(32)]), VERIFY)
    assert "what was signed at 3" in other[-1]


def test_after_the_heal_everybody_runs_and_nothing_is_open() -> None:
    assert everything_makes_progress([Settling("a", True)]) == []
    assert everything_makes_progress([Settling("a", False, why="its disk")]) == ["a does not run: its disk"]
    (finding,) = everything_makes_progress([Settling("a", True, untold=1, waiting=2, owed=3, held=4)])
    assert finding == (
        "a has not come to an end: 1 not acknowledged, 2 not decided, 3 still owed, 4 held by the network"
    )
