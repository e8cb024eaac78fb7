"""The ring between real processes: at full speed with every byte compared, stopped, flooded, killed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.ring import parts_of
from stigmergy.base.errors import Overloaded, RingLocked
from stigmergy.ring import open_blocking_consumer, open_blocking_producer, open_producer
from stigmergy.ring.layout import framed_bytes

ROOT = Path(__file__).resolve().parents[2]
CAPACITY_BYTES = 64 * 1024
BENCH = [sys.executable, "-m", "bench.ring"]

ECHO = """
import asyncio, sys
from stigmergy.ring import open_consumer, open_producer

async def main():
    there, back = open_consumer(sys.argv[1]), open_producer(sys.argv[2])
    while await there.wait_ready(240):
        message = there.take_nowait()
        await back.put(b"echo ", message.body)
        there.mark_durable(message.number)

asyncio.run(main())
"""

HOLDER = """
import sys, time
from stigmergy import ring
held = getattr(ring, "open_blocking_" + sys.argv[2])(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("size", "capacity"),
    [
        pytest.param(8, CAPACITY_BYTES, marks=pytest.mark.prove),
        (1000, 4096),
        pytest.param(32 * 1024 - 16, CAPACITY_BYTES, marks=pytest.mark.prove),
        pytest.param(448 * 1024, 16 * 1024 * 1024, marks=pytest.mark.prove),
    ],
)
def test_every_byte_arrives_at_full_speed(tmp_path: Path, size: int, capacity: int) -> None:
    # It is a test only if it has gone around a few times; a busy machine gets more time for that.
    rounds = 0.0
    for seconds in (0.4, 2.0, 10.0, 50.0):
        options = ["--check", "--json", "--seconds", str(seconds), "--size", str(size), "--capacity", str(capacity)]
        done = subprocess.run(
            [*BENCH, *options, "--folder", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (speed,) = json.loads(done.stdout)
        rounds = speed["messages"] * framed_bytes(size) / capacity
        if rounds > 5:
            return
    pytest.fail(f"it went around {rounds:.1f} times at most")


def test_sleepers_are_woken_across_processes(tmp_path: Path) -> None:
    """Each waits for the other in turn: a bell that is not heard would cost a quarter of a second every time."""
    there, back = tmp_path / "there", tmp_path / "back"
    rounds = 400
    with (
        open_blocking_producer(there) as producer,
        open_blocking_consumer(back) as consumer,
        subprocess.Popen([sys.executable, "-c", ECHO, str(there), str(back)]) as echo,
    ):
        try:
            begin_s = time.monotonic()
            for number in range(rounds + 1):
                if number == 1:
                    begin_s = time.monotonic()  # the other process is there now
                producer.put(b"%d" % number)
                assert consumer.wait_ready(240)
                message = consumer.take_nowait()
                assert message is not None
                assert bytes(message.body) == b"echo %d" % number
                del message
                consumer.mark_durable(number + 1)
                producer.wait_durable(within_s=240)
            took_s = time.monotonic() - begin_s
        finally:
            echo.kill()
    assert took_s < rounds * 0.25 / 2


def test_flood_on_a_stopped_consumer_is_held_up_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    with (
        open_blocking_producer(path, capacity_bytes=CAPACITY_BYTES) as producer,
        subprocess.Popen([*BENCH, "--consume", str(path), "--check"], cwd=ROOT) as consumer,
    ):
        try:
            producer.put(*parts_of(1, 1000))
            producer.wait_durable(within_s=240)
            consumer.send_signal(signal.SIGSTOP)
            number, refused = 1, 0
            while refused < 20:
                try:
                    producer.put(*parts_of(number + 1, 1000), within_s=0.01)
                    number += 1
                except Overloaded:
                    refused += 1
            assert number * 1000 <= CAPACITY_BYTES
            assert producer.durable() == 1
            consumer.send_signal(signal.SIGCONT)
            for later in range(number + 1, number + 200):
                producer.put(*parts_of(later, 1000), within_s=240)
            producer.put(b"the last one", within_s=240)
            producer.wait_durable(within_s=240)
            assert consumer.wait(240) == 0
        finally:
            consumer.kill()


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_claim_ends_with_its_process_however_that_ends(tmp_path: Path, side: str) -> None:
    path = tmp_path / "ring"
    opener = open_blocking_producer if side == "producer" else open_blocking_consumer
    command = [sys.executable, "-c", HOLDER, str(path), side]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RingLocked, match=f"has a {side} already; stop that one first"):
            opener(path)
        holder.kill()
        holder.wait()
    with opener(path) as ring:
        assert ring.incarnation == 2


def test_child_of_another_program_does_not_keep_the_claim(tmp_path: Path) -> None:
    producer = open_producer(tmp_path / "ring")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        producer.close()
        open_producer(tmp_path / "ring").close()
        child.kill()


def test_killed_again_and_again() -> None:
    """A few dozen here; `make prove` does two thousand."""
    command = [sys.executable, "-m", "proofs.ring_kill", "--kills", "80", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)["figures"]
    # Otherwise it was no test: both sides were killed, under way, with messages in the ring.
    assert min(figures["killed_producers"], figures["killed_consumers"]) > 20
    assert figures["messages"] > 1000
    assert figures["kills_with_messages_waiting"] > 0
