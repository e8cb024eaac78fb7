"""The ring on files: what may be opened, what is refused and how; blocking sides; sleeping without spinning."""

import asyncio
import errno
import os
import stat
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest

from stigmergy.base.errors import ConfigError, Overloaded, RingDamaged, RingError, RingForeign, RingLocked
from stigmergy.ring import (
    mapped_ring,
    open_blocking_consumer,
    open_blocking_producer,
    open_consumer,
    open_producer,
    remove_ring,
)
from stigmergy.ring.layout import HEADER_BYTES
from stigmergy.ring.port import CAPACITY_BYTES, CAPACITY_BYTES_MAX, MESSAGE_BYTES_MAX

SMALL_BYTES = 8192


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.ring"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def make_with(path: Path, *bodies: bytes) -> None:
    with open_blocking_producer(path, capacity_bytes=SMALL_BYTES) as ring:
        for body in bodies:
            ring.put_nowait(body)


# Files.


def test_files_are_for_their_owner_only_and_have_their_room(path: Path) -> None:
    before = descriptors()
    with open_blocking_producer(path), open_blocking_consumer(path):
        pass
    assert sorted(file.name for file in path.parent.iterdir()) == ["fleet.ring", "fleet.ring.ready", "fleet.ring.room"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert path.stat().st_size == HEADER_BYTES + CAPACITY_BYTES
    assert path.stat().st_blocks * 512 >= CAPACITY_BYTES
    assert descriptors() == before
    remove_ring(path)
    remove_ring(path)
    assert list(path.parent.iterdir()) == []


def test_ring_in_use_is_not_removed(path: Path) -> None:
    with open_blocking_producer(path), pytest.raises(RingLocked, match="has a producer already"):
        remove_ring(path)
    with open_blocking_consumer(path), pytest.raises(RingLocked, match="has a consumer already"):
        remove_ring(path)
    remove_ring(path)


def test_capacity_is_that_of_who_made_it(path: Path) -> None:
    make_with(path, b"x")
    with open_blocking_consumer(path) as ring:
        assert ring.take_nowait() is not None
    with pytest.raises(RingForeign, match="has 8192 bytes, not 4096; ask for as many"):
        open_consumer(path, capacity_bytes=4096)


@pytest.mark.parametrize("capacity", [-1, 1, 4095, 5000, CAPACITY_BYTES_MAX + 4096])
def test_impossible_capacity_is_refused(path: Path, capacity: int) -> None:
    with pytest.raises(ConfigError, match="possible are multiples of 4096"):
        open_producer(path, capacity_bytes=capacity)
    assert list(path.parent.iterdir()) == []


def test_longest_message_in_the_default_ring(path: Path) -> None:
    with open_blocking_producer(path) as producer, open_blocking_consumer(path) as consumer:
        body = os.urandom(MESSAGE_BYTES_MAX)
        producer.put_nowait(body)
        message = consumer.take_nowait()
        assert message is not None
        assert message.body == body
        del message


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_room_for_a_ring_is_said_at_once(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ConfigError, match=r"no room for a ring .*; make room, or ask for a smaller one"):
            open_producer(path)
    open_producer(path).close()


def test_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no ring can be opened here \(No such file or directory\)"):
        open_producer(tmp_path / "missing" / "ring")
    with pytest.raises(ConfigError, match="no ring can be opened here"):
        open_producer(tmp_path)


@pytest.mark.parametrize("content", [b"x", b"hello world" * 1000, bytes(9000) + b"x", b"stg-ring" + bytes(9000)])
def test_another_file_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    for opener in (open_producer, open_consumer):
        with pytest.raises((RingForeign, RingDamaged), match="remove"):
            opener(path)
    assert path.read_bytes() == content


def test_pipe_folder_and_link_are_no_ring(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(RingForeign, match="is not part of a ring"):
        open_producer(path)
    path.unlink()
    path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(ConfigError):
        open_producer(path)
    path.unlink()
    Path(f"{path}.room").write_bytes(b"")
    with pytest.raises(RingForeign, match="is not part of a ring"):
        open_producer(path)


def test_file_open_to_others_is_refused(path: Path) -> None:
    make_with(path)
    for file in (path, Path(f"{path}.ready"), Path(f"{path}.room")):
        file.chmod(0o640)
        with pytest.raises(RingForeign, match="both sides of a ring run as one user"):
            open_producer(path)
        file.chmod(0o600)
    open_producer(path).close()


def test_file_of_somebody_else_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_with(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RingForeign, match="both sides of a ring run as one user"):
        open_producer(path)


def test_half_made_ring_is_made_anew(path: Path) -> None:
    """A process may die between taking the room and writing the header."""
    path.write_bytes(bytes(5000))
    path.chmod(0o600)
    make_with(path, b"x")
    assert path.stat().st_size == HEADER_BYTES + SMALL_BYTES


def test_other_format_is_refused(path: Path) -> None:
    make_with(path, b"x")
    content = bytearray(path.read_bytes())
    content[8] = 2
    content[48:52] = zlib.crc32(content[:48]).to_bytes(4, sys.byteorder)
    path.write_bytes(content)
    with pytest.raises(RingForeign, match="a ring of format 2, this program knows 1; use the same version"):
        open_consumer(path)


def test_header_with_any_flipped_bit_is_refused(path: Path) -> None:
    make_with(path, b"x")
    content = path.read_bytes()
    for at in range(56):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises((RingForeign, RingDamaged)):
            open_consumer(path)
    path.write_bytes(content)
    open_consumer(path).close()


@pytest.mark.parametrize("size", [HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + SMALL_BYTES - 1, 100_000])
def test_cut_or_grown_file_is_refused(path: Path, size: int) -> None:
    make_with(path, b"x")
    os.truncate(path, size)
    with pytest.raises((RingDamaged, RingForeign), match="remove"):
        open_consumer(path)


def test_ring_of_another_boot_is_begun_anew(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_with(path, b"before the power went")
    other = tmp_path / "boot"
    other.write_text("01234567-0123-0123-0123-0123456789ab\n")
    monkeypatch.setattr(mapped_ring, "_BOOT", other)
    with open_blocking_consumer(path) as consumer, open_blocking_producer(path) as producer:
        assert consumer.take_nowait() is None
        assert (producer.written, producer.incarnation, consumer.incarnation) == (0, 1, 1)
        assert producer.put_nowait(b"after") == 1
    with open_blocking_consumer(path) as consumer:
        assert consumer.take_nowait() is not None


def test_ring_that_was_replaced_says_so(path: Path) -> None:
    with open_blocking_producer(path, capacity_bytes=SMALL_BYTES) as ring:
        ring.put(bytes(4000))
        path.unlink()
        ring.put(bytes(2000))
        with pytest.raises(RingError, match="removed or replaced while it was in use"):
            ring.put(bytes(4000), within_s=0.01)
        make_with(Path(f"{path}2"))
        os.rename(f"{path}2", path)
        with pytest.raises(RingError, match="removed or replaced"):
            ring.wait_durable(within_s=0.01)


def test_message_stays_readable_when_its_consumer_is_closed(path: Path) -> None:
    make_with(path, b"held")
    consumer = open_blocking_consumer(path)
    message = consumer.take_nowait()
    assert message is not None
    consumer.close()
    with open_blocking_consumer(path) as again:
        assert again.take_nowait() is not None
    assert bytes(message.body) == b"held"


def test_damage_is_not_repaired_by_opening_again(path: Path) -> None:
    make_with(path, b"one", b"two")
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + 32)
        file.write(b"\xff" * 16)
    for _ in range(2):
        with open_blocking_consumer(path) as consumer:
            assert consumer.take_nowait() is not None
            with pytest.raises(RingDamaged, match="message 2 has no header; stop both sides and remove the ring"):
                consumer.take_nowait()
            with pytest.raises(RingDamaged):
                consumer.wait_ready(0)


# Waiting.


def test_blocking_sides_wait_for_each_other(path: Path) -> None:
    with open_blocking_producer(path, capacity_bytes=SMALL_BYTES) as producer:
        seen: list[int] = []

        def consume() -> None:
            with open_blocking_consumer(path) as consumer:
                while len(seen) < 200 and consumer.wait_ready(240):
                    message = consumer.take_nowait()
                    assert message is not None
                    assert message.body == message.number.to_bytes(4, "big") * 500
                    seen.append(message.number)
                    del message
                    consumer.mark_durable(seen[-1])

        thread = threading.Thread(target=consume)
        thread.start()
        for number in range(1, 201):
            assert producer.put(number.to_bytes(4, "big") * 500) == number
        producer.wait_durable(within_s=240)
        thread.join()
        assert seen == list(range(1, 201))


def test_blocking_waits_are_bounded(path: Path) -> None:
    with open_blocking_producer(path, capacity_bytes=SMALL_BYTES) as producer, open_blocking_consumer(path) as consumer:
        assert not consumer.wait_ready(0.01)
        producer.put(bytes(4000))
        assert consumer.wait_ready(0.01)
        producer.put(bytes(3000))
        begin_s = time.monotonic()
        with pytest.raises(Overloaded, match=r"no room after 0\.3 s.* 2 of them not read"):
            producer.put(bytes(4000), within_s=0.3)
        with pytest.raises(Overloaded, match=r"not durable after 0\.3 s, only 0 is"):
            producer.wait_durable(1, within_s=0.3)
        assert 0.6 <= time.monotonic() - begin_s < 60


def test_sleeping_costs_nothing(path: Path) -> None:
    async def sleep() -> float:
        producer, consumer = open_producer(path, capacity_bytes=SMALL_BYTES), open_consumer(path)
        producer.put_nowait(bytes(4000))
        producer.put_nowait(bytes(3900))
        consumer.take_nowait()
        consumer.take_nowait()
        producer._ready.ring()
        consumer._room.ring()
        begin_s = time.process_time()
        results = await asyncio.gather(
            consumer.wait_ready(1.0), producer.put(bytes(4000), within_s=1.0), return_exceptions=True
        )
        assert results[0] is False
        assert isinstance(results[1], Overloaded)
        producer.close()
        consumer.close()
        return time.process_time() - begin_s

    assert asyncio.run(sleep()) < 0.15


def test_lost_bell_costs_a_moment_only(path: Path) -> None:
    """A producer killed between taking back the word of a sleeper and ringing has woken nobody."""

    async def lose() -> None:
        producer, consumer = open_producer(path), open_consumer(path)
        producer._ready.ring = lambda: None  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(consumer.wait_ready(240))
        await asyncio.sleep(0.02)
        producer.put_nowait(b"x")
        assert await asyncio.wait_for(waiting, 60)
        producer.close()
        consumer.close()

    asyncio.run(lose())


def test_bell_that_nobody_hears_never_blocks(path: Path) -> None:
    with open_blocking_producer(path) as producer, open_blocking_consumer(path) as consumer:
        for _ in range(200_000):
            producer._ready.ring()
        producer.put(b"x")
        assert consumer.wait_ready(10)


def test_sides_move_to_another_loop(path: Path) -> None:
    producer, consumer = open_producer(path), open_consumer(path)

    async def exchange(number: int) -> None:
        waiting = asyncio.ensure_future(consumer.wait_ready(240))
        await asyncio.sleep(0.01)
        await producer.put(b"x")
        assert await waiting
        message = consumer.take_nowait()
        assert message is not None
        assert message.number == number

    for number in (1, 2, 3):
        asyncio.run(exchange(number))
    producer.close()
    consumer.close()
