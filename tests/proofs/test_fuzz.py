"""A little fuzzing in every test run, and every input that ever got through, by name."""

import random
import time

import pytest

from bench.workload import Drone, Positioned
from proofs.fuzz import CPU_S_MAX, Mutator, fuzz, try_once
from proofs.fuzz_targets import MIB, Target, targets
from stigmergy.agents.codec import ENVELOPE_FORMAT, Envelope, encode
from stigmergy.base.errors import JournalCorrupt, Malformed
from stigmergy.base.system import SystemClock
from stigmergy.journal.memory import open_journal
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import open_host

TARGETS = {target.name: target for target in targets()}
SECONDS = 0.3
NO_UTF_8 = {
    "envelope": encode(Envelope(ENVELOPE_FORMAT, "ground", 1, 0, 1, [])).replace(b"ground", b"gro\xffnd"),
    "message": encode(Positioned(north_m=0.0, east_m=0.0, altitude_m=1.0)).replace(b"Positioned", b"Posi\xffioned"),
    "control request": b'{"v": 1, "do": "sta\xfftus"}',
}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_gets_through(name: str) -> None:
    count, crashes = fuzz(TARGETS[name], SECONDS, seed=4)
    assert [str(crash) for crash in crashes] == []
    assert count > 20


@pytest.mark.parametrize("name", NO_UTF_8)
def test_text_that_is_no_utf_8(name: str) -> None:
    """For it msgspec lets Python's own error through; found by fuzzing: one such message had stopped a node."""
    assert try_once(TARGETS[name], NO_UTF_8[name]) is None


@pytest.mark.parametrize("name", ["commit", "snapshot content"])
def test_a_stored_text_that_is_no_utf_8(name: str) -> None:
    damaged = TARGETS[name].seeds[0].replace(b"ground", b"gro\xffnd", 1)
    assert damaged != TARGETS[name].seeds[0]
    assert try_once(TARGETS[name], damaged) is None


async def test_a_node_goes_on_after_text_that_is_no_utf_8() -> None:
    journal = open_journal("memory:", JournalIdentity(fleet="fuzzed", shards=1, incarnation=1))
    fleet = Declaration("fuzzed", agents=[Drone])
    host = open_host(fleet, journal, Ed25519Signer(bytes(32)), Ed25519Verifier(), SystemClock())
    await host.start()
    good = encode(Positioned(north_m=1.0, east_m=2.0, altitude_m=3.0))
    items = [("Drone/D-1", good), ("Drone/D-1", NO_UTF_8["message"]), ("Drone/D-2", good)]
    await host.intake.deliver(encode(Envelope(ENVELOPE_FORMAT, "ground", 1, 0, 1, items)))
    with pytest.raises(Malformed):
        await host.intake.deliver(NO_UTF_8["envelope"])
    assert host.failure is None
    state = host.shards[0].state
    assert list(state.agents) == ["Drone/D-1", "Drone/D-2"]
    assert len(state.letters.all()) == 1
    await host.stop()


class TestTheFuzzerNotices:
    """The checks themselves, against decoders that misbehave."""

    @staticmethod
    def target(decode: object) -> Target:
        assert callable(decode)
        return Target("bad", decode, [b"seed"], (JournalCorrupt,), MIB)

    def test_an_error_of_somebody_else(self) -> None:
        crash = try_once(self.target(lambda data: data.decode("ascii")), b"\xff")
        assert crash is not None
        assert "UnicodeDecodeError" in str(crash)

    def test_an_error_of_its_own_is_fine(self) -> None:
        def refuse(_: bytes) -> None:
            raise JournalCorrupt("as it should be")

        assert try_once(self.target(refuse), b"") is None

    def test_too_much_memory(self) -> None:
        crash = try_once(self.target(lambda _: bytes(2 * MIB)), b"", look_at_memory=True)
        assert crash is not None
        assert "memory" in crash.why

    def test_too_much_time(self) -> None:
        def spin(_: bytes) -> None:
            end_s = time.process_time() + 1.1 * CPU_S_MAX
            while time.process_time() < end_s:
                pass

        crash = try_once(self.target(spin), b"")
        assert crash is not None
        assert "processor time" in crash.why

    def test_the_same_seed_makes_the_same_inputs(self) -> None:
        def inputs(seed: int) -> list[bytes]:
            mutator = Mutator(random.Random(seed), [b"one", b"twofold", b""], 100)
            return [mutator.next() for _ in range(200)]

        assert inputs(1) == inputs(1) != inputs(2)
        assert max(map(len, inputs(1))) <= 100
