"""`python -m bench.ring [--check] [--folder /dev/shm]`: how fast messages get from one process to another.

The producer is this process, the consumer one of its own. The consumer copies each message once, as a journal would,
and marks what it has after a few. With --check it compares every byte instead, which is slower, and is what the tests
run. A figure of the machine, and no test: on two busy cores it says little.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from stigmergy.ring import open_blocking_consumer, open_blocking_producer, remove_ring
from stigmergy.ring.port import CAPACITY_BYTES, RingMessage

SIZES_BYTES = (128, 32 * 1024, 448 * 1024)
SECONDS = 2.0
MARK_EVERY = 4
START_S_MAX = 30.0
_SPREAD = 1024 * 1024
_NOISE = memoryview(random.Random(1).randbytes(2 * _SPREAD))
_LAST = b"the last one"


class Speed(Struct):
    """What one size has come to."""

    message_bytes: int
    messages: int
    megabytes_per_s: float
    messages_per_s: float
    producer_cpu: float
    """Of one core."""


def parts_of(number: int, size_bytes: int) -> tuple[bytes, memoryview]:
    """The message of this number: its bytes depend on the number, and are there already."""
    at = number * 4093 % _SPREAD
    return number.to_bytes(8, "little"), _NOISE[at : at + max(0, size_bytes - 8)]


def is_as_put(message: RingMessage) -> bool:
    """Whether every byte of it is what `parts_of` gives."""
    head, rest = parts_of(message.number, len(message.body))
    return bytes(message.body[:8]) == head and bytes(message.body[8:]) == rest.tobytes()


def produce(path: Path, size_bytes: int, seconds: float, check: bool, capacity_bytes: int) -> Speed:
    """Puts messages for so long, and waits until all are taken."""
    command = [sys.executable, "-m", "bench.ring", "--consume", str(path), *(["--check"] if check else [])]
    with open_blocking_producer(path, capacity_bytes=capacity_bytes) as ring, subprocess.Popen(command) as consumer:
        try:
            ring.put(*parts_of(1, size_bytes))
            ring.wait_durable(within_s=START_S_MAX)
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            number, end_s = 1, begin_s + seconds
            while time.perf_counter() < end_s:
                for _ in range(16):
                    number += 1
                    ring.put(*parts_of(number, size_bytes))
            ring.put(_LAST)
            ring.wait_durable()
            took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        except BaseException:
            consumer.kill()
            raise
    if consumer.returncode != 0:
        raise SystemExit(f"the consumer ended with {consumer.returncode}")
    return Speed(
        message_bytes=size_bytes,
        messages=number,
        megabytes_per_s=round((number - 1) * size_bytes / took_s / 1e6, 1),
        messages_per_s=round((number - 1) / took_s),
        producer_cpu=round(cpu_s / took_s, 2),
    )


def consume(path: Path, check: bool) -> int:
    """Takes messages until the last; 1 if one is not what was put."""
    expected = 1
    with open_blocking_consumer(path) as ring:
        while ring.wait_ready(START_S_MAX):
            while (message := ring.take_nowait()) is not None:
                if message.body == _LAST:
                    ring.mark_durable(message.number)
                    return 0
                if message.number != expected or (check and not is_as_put(message)):
                    print(f"message {message.number} is not what was put as {expected}", file=sys.stderr)
                    return 1
                if not check:
                    bytes(message.body)
                if expected % MARK_EVERY == 0:
                    ring.mark_durable(expected)
                expected += 1
            ring.mark_durable(expected - 1)
    print("nothing came", file=sys.stderr)
    return 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.ring", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where the ring is made")
    parser.add_argument("--size", type=int, action="append", help="bytes of a message; may be given more than once")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each size")
    parser.add_argument("--capacity", type=int, default=CAPACITY_BYTES, help="bytes of the ring")
    parser.add_argument("--check", action="store_true", help="compare every byte")
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--consume", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume:
        return consume(options.consume, options.check)
    path = options.folder / "stigmergy-bench.ring"
    speeds = []
    for size_bytes in options.size or SIZES_BYTES:
        remove_ring(path)
        try:
            speeds.append(produce(path, size_bytes, options.seconds, options.check, options.capacity))
        finally:
            remove_ring(path)
        if not options.json:
            speed = speeds[-1]
            print(
                f"{speed.message_bytes:>8,} bytes: {speed.megabytes_per_s:>9,.1f} MB/s "
                f"{speed.messages_per_s:>9,.0f} messages/s  producer {speed.producer_cpu:.0%} of a core"
            )
    if options.json:
        print(msgspec.json.encode(speeds).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
