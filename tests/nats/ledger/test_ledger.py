"""The ledger on JetStream, against real servers: the contract, and what is particular to signed logs on a cluster."""

import asyncio
import base64
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from stigmergy.base.errors import (
    Bug,
    ConfigError,
    LedgerCorrupt,
    LedgerCut,
    LedgerForeign,
    LedgerUnavailable,
    LedgerUnknown,
)
from stigmergy.claims.port import ENTRIES_COUNT_MAX, ENTRY_BYTES_MAX, LedgerCheckpoint, LedgerEntry
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.nats.address import parse_address
from stigmergy.nats.ledger import NatsLedger, open_ledger
from stigmergy.nats.ledger import ledger as opening
from stigmergy.nats.ledger import reader as reading
from stigmergy.nats.ledger import writer as writing
from stigmergy.nats.ledger.records import Cut, base_of
from stigmergy.nats.ledger.streams import find_place
from stigmergy.nats.link import NatsLink
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.ledger_contract import NAME, LedgerContract, OpenLedger, read_all
from stigmergy.testing.nats import NatsCluster, start_single
from stigmergy.testing.proxy import LinkProxy

SIGNER = Ed25519Signer(b"\x01" * 32)
OTHER = Ed25519Signer(b"\x02" * 32)
places = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(Path(tmp_path_factory.mktemp("nats"))) as cluster:
        yield cluster


class TestNatsLedger(LedgerContract):
    @pytest.fixture
    def open_ledger(self, server: NatsCluster) -> OpenLedger:
        url = f"{server.url}/place-{next(places)}"
        return lambda name: open_ledger(url, name, signer=SIGNER)


# What is particular to it.


@pytest.fixture
def url(server: NatsCluster) -> str:
    return f"{server.url}/place-{next(places)}"


def opened(
    url: str, signer: Ed25519Signer | None = SIGNER, trusted: Sequence[bytes] = (), name: str = NAME
) -> NatsLedger:
    return open_ledger(url, name, signer=signer, trusted=trusted)


@in_a_loop
async def test_the_largest_append_is_one(url: str) -> None:
    one, other = opened(url), opened(url)
    large = [bytes([number]) * ENTRY_BYTES_MAX for number in range(ENTRIES_COUNT_MAX)]
    assert await one.append(large) == 1
    assert await other.append([b"after"]) == ENTRIES_COUNT_MAX + 1
    assert [entry.body for entry in await read_all(other)] == [*large, b"after"]
    await one.close()
    await other.close()


@in_a_loop
async def test_a_log_that_was_cut_goes_on_for_who_comes_later(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "STATES_EVERY", 4)
    monkeypatch.setattr(reading, "STATES_COUNT_MAX", 8)
    one, reader = opened(url), opened(url)
    await reader.read(0)
    for number in range(60):
        await one.append([b"%d" % number, b"+"])
    await one.put_checkpoint(LedgerCheckpoint(80, b"state"))
    await one.cut(80)
    assert await reader.append([b"still here"]) == 121
    later = opened(url)
    with pytest.raises(LedgerCut):
        await later.read(79)
    assert await later.checkpoint() == LedgerCheckpoint(80, b"state")
    assert await later.read(80) == await one.read(80)
    assert await later.append([b"last"]) == 122
    assert later.state.chain == (await _same_chain(one, later.state.sequence))
    await one.put_checkpoint(LedgerCheckpoint(122, b"more"))
    await later.cut(122)
    last = opened(url)
    assert await last.read(122) == []
    for ledger in (one, reader, later, last):
        await ledger.close()


@in_a_loop
@pytest.mark.parametrize("is_away", [False, True])
async def test_a_ledger_that_was_made_anew_is_another_one(url: str, server: NatsCluster, *, is_away: bool) -> None:
    """Though it is longer by now than what was read: what one had appended then would count for nobody else."""
    proxy = LinkProxy(server.servers[0].plan.port)
    one = opened(f"nats://127.0.0.1:{await proxy.start()}/{url.rpartition('/')[2]}")
    for number in range(3):
        await one.append([b"old %d" % number])
    await one.read(0)  # so that it ends with an empty message, as the new one does in the same place
    length = one.state.sequence
    if is_away:
        proxy.cut()
    place = find_place(url, NAME)
    link = await NatsLink.open(parse_address(url), name="operator")
    await link.api(f"STREAM.DELETE.{place.stream}")
    await link.api(f"STREAM.DELETE.{place.checkpoints}")
    two = opened(url)
    for number in range(20):
        await two.append([b"new %d" % number])
        if two.state.sequence == length - 1:
            await two.read(0)
    proxy.restore()
    with pytest.raises(LedgerCorrupt, match="another one than was read"):
        await _append_surely(one, b"mine")
    assert one.state.position == 3
    assert [entry.body for entry in await two.read(0)] == [b"new %d" % number for number in range(20)]
    await link.close()
    await one.close()
    await two.close()
    await proxy.close()


async def _append_surely(ledger: NatsLedger, body: bytes) -> None:
    while True:
        with contextlib.suppress(LedgerUnavailable, LedgerUnknown):
            await ledger.append([body])
            return


@in_a_loop
async def test_a_cut_that_comes_late_and_what_strangers_say_of_cuts_hold_up_nobody(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was behind cuts less than another one just has; its message is the last of its kind all the same."""
    monkeypatch.setattr(reading, "STATES_EVERY", 4)
    one, late = opened(url), opened(url)
    for number in range(60):
        await one.append([b"%d" % number])
    await late.read(0)
    assert late._reader is not None
    less = Cut(20, base_of(late._reader.state_before(20)))
    await one.put_checkpoint(LedgerCheckpoint(50, b"state"))
    await one.cut(50)
    await late._needed_writer().do(less)
    link, place = await NatsLink.open(parse_address(url), name="stranger"), find_place(url, NAME)
    await link.publish(place.cut_subject, b"nonsense")
    later = opened(url)
    assert await later.read(50) == await one.read(50)
    assert await later.append([b"next"]) == 61
    await link.close()
    for ledger in (one, late, later):
        await ledger.close()


@in_a_loop
async def test_a_log_that_is_cut_again_and_again_stays_small(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "STATES_EVERY", 2)
    monkeypatch.setattr(reading, "STATES_COUNT_MAX", 4)
    one = opened(url)
    link, place = await NatsLink.open(parse_address(url), name="looking"), find_place(url, NAME)
    for number in range(1, 151):
        assert await one.append([b"%d" % number]) == number
        if number % 6 == 0:
            await one.put_checkpoint(LedgerCheckpoint(number, b"state %d" % number))
            await one.cut(number)
    kept = (await link.api(f"STREAM.INFO.{place.stream}"))["state"]["messages"]
    assert kept < 20
    assert (await link.api(f"STREAM.INFO.{place.checkpoints}"))["state"]["messages"] == 2, "a head and a piece"
    later = opened(url)
    assert await later.append([b"after"]) == 151
    for connection in (one, later, link):
        await connection.close()


async def _same_chain(ledger: NatsLedger, sequence: int) -> bytes:
    await ledger.read(await _end(ledger))
    assert ledger._reader is not None
    return ledger._reader._chains[sequence]


async def _end(ledger: NatsLedger) -> int:
    await ledger.read(ledger.state.cut)
    return ledger.state.position


@in_a_loop
async def test_old_entries_are_fetched_again_and_must_be_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RECENT_COUNT", 2)
    monkeypatch.setattr(reading, "STATES_EVERY", 4)
    monkeypatch.setattr(reading, "FETCH_COUNT", 5)
    one = opened(url)
    for number in range(30):
        await one.append([b"%d" % number])
    assert [int(entry.body) for entry in await read_all(one, count_max=7)] == list(range(30))
    assert [int(entry.body) for entry in await one.read(3, 4)] == [3, 4, 5, 6]
    reader = one._reader
    assert reader is not None
    reader._states[1] = msgspec.structs.replace(reader._states[1], chain=bytes(32))
    reader._chains.clear()
    reader._older = None
    with pytest.raises(LedgerCorrupt, match="has changed since"):
        await one.read(0, 20)
    await one.close()


@in_a_loop
async def test_only_enrolled_keys_write(url: str) -> None:
    one, two = opened(url), opened(url, OTHER)
    await one.append([b"one"])
    with pytest.raises(LedgerUnavailable, match="may not write"):
        await two.append([b"two"])
    await one.enrol([OTHER.public_key])
    await _end(two)
    assert await two.append([b"two"]) == 2
    await two.revoke([SIGNER.public_key])
    await _end(one)
    with pytest.raises(LedgerUnavailable, match="may not write"):
        await one.append([b"one again"])
    assert [entry.body for entry in await one.read(0)] == [b"one", b"two"]
    with pytest.raises(ConfigError, match="cannot be enrolled"):
        await two.enrol([bytes(32)])
    for ledger in (one, two):
        await ledger.close()


@in_a_loop
async def test_a_writer_revoked_under_way_hears_that_nothing_was_written(url: str) -> None:
    """It signs before it has read that it may not write any more."""
    one, two = opened(url, trusted=[OTHER.public_key]), opened(url, OTHER, [SIGNER.public_key])
    await two.append([b"two"])
    assert two._reader is not None
    two._reader._take = lambda *_: None  # type: ignore[method-assign]  # it hears nothing
    await one.revoke([OTHER.public_key])
    appending = asyncio.ensure_future(two.append([b"too late"]))
    await asyncio.sleep(0.2)
    del two._reader._take
    with pytest.raises(LedgerUnavailable, match="may not write"):
        await appending
    assert [entry.body for entry in await one.read(0)] == [b"two"]
    for ledger in (one, two):
        await ledger.close()


@in_a_loop
async def test_peers_may_write_from_the_beginning_and_strangers_are_not_believed(url: str) -> None:
    one, two = opened(url, trusted=[OTHER.public_key]), opened(url, OTHER, [SIGNER.public_key])
    assert await two.append([b"two"]) == 1
    assert await one.append([b"one"]) == 2
    stranger = Ed25519Signer(b"\x03" * 32)
    with pytest.raises(LedgerForeign, match="does not trust"):
        opened(url, stranger, [Ed25519Signer(b"\x04" * 32).public_key])
    for ledger in (one, two):
        await ledger.close()


@in_a_loop
async def test_what_strangers_publish_is_passed_over(url: str) -> None:
    one = opened(url)
    await one.append([b"one"])
    link, place = await NatsLink.open(parse_address(url), name="stranger"), find_place(url, NAME)
    stored = (await link.api(f"STREAM.MSG.GET.{place.stream}", {"seq": 3}))["message"]
    await link.publish(place.log_subject, b"hello")
    await link.publish(place.log_subject, base64.b64decode(stored["data"]))  # what somebody has listened to
    assert await one.append([b"two"]) == 2
    assert [entry.body for entry in await one.read(0)] == [b"one", b"two"]
    assert (one.state.counts.malformed, one.state.counts.repeated) == (1, 1)
    await link.close()
    await one.close()


@in_a_loop
async def test_a_reader_that_has_another_chain_than_a_writer_signs_says_so(url: str) -> None:
    one, two = opened(url), opened(url)
    await one.append([b"one"])
    await two.append([b"two"])
    assert two._reader is not None
    for sequence in two._reader._chains:
        two._reader._chains[sequence] = bytes(32)
    await one.append([b"three"])
    with pytest.raises(LedgerCorrupt, match="has signed another log"):
        await two.read(0)
    with pytest.raises(LedgerCorrupt):
        await two.append([b"four"])
    for ledger in (one, two):
        await ledger.close()


@in_a_loop
async def test_a_stream_that_has_lost_its_end_is_noticed(url: str) -> None:
    one = opened(url)
    for number in range(5):
        await one.append([b"%d" % number])
    link, place = await NatsLink.open(parse_address(url), name="vandal"), find_place(url, NAME)
    await link.api(f"STREAM.DELETE.{place.stream}")
    again = opened(url)
    with pytest.raises(LedgerCorrupt, match="lost its end"):
        await one.read(0)
    await link.close()
    for ledger in (one, again):
        await ledger.close()


@in_a_loop
async def test_who_is_behind_takes_a_checkpoint_and_reads_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is ahead of what this connection has read: nothing is lost for that."""
    monkeypatch.setattr(reading, "LOOK_S", 60.0)
    one, deaf = opened(url), opened(url)
    assert await deaf.read(0) == []
    assert deaf._reader is not None
    await deaf._reader._unsubscribe()
    for number in range(8):
        await one.append([b"%d" % number])
    await one.put_checkpoint(LedgerCheckpoint(6, b"state"))
    checkpoint = await deaf.checkpoint()
    assert checkpoint is not None
    read = await deaf.read(checkpoint.position, fresh=False)
    assert [entry.body for entry in read] == [b"6", b"7"]
    with pytest.raises(LedgerCorrupt, match="lost its end"):
        await deaf.read(9, fresh=False)
    for ledger in (one, deaf):
        await ledger.close()


@in_a_loop
async def test_a_fresh_read_asks_and_does_not_only_listen(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LOOK_S", 60.0)
    one, deaf = opened(url), opened(url)
    assert await deaf.read(0) == []
    assert deaf._reader is not None
    await deaf._reader._unsubscribe()
    await one.append([b"one"])
    assert await deaf.read(0, fresh=False) == []
    assert [entry.body for entry in await deaf.read(0)] == [b"one"]
    for ledger in (one, deaf):
        await ledger.close()


@in_a_loop
async def test_an_answer_that_never_came_is_unknown_and_the_same_again_counts_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "WRITE_S", 0.5)
    monkeypatch.setattr(writing, "ATTEMPT_S", 0.2)
    monkeypatch.setattr(writing, "QUORUM_ASK_S", 0.2)
    proxy = LinkProxy(int(url.rpartition(":")[2].partition("/")[0]))
    port = await proxy.start()
    one = opened(f"nats://127.0.0.1:{port}/{url.rpartition('/')[2]}")
    await one.append([b"one"])

    async def unheard(entry: bytes) -> None:
        proxy.mute_server()
        with pytest.raises(LedgerUnknown):
            await one.append([entry])
        proxy.restore()
        proxy.drop()

    await unheard(b"two")
    assert await _until(lambda: one.append([b"two"])) == 2
    await unheard(b"three")
    position = await _until(lambda: one.append([b"four"]))
    bodies = [entry.body for entry in await one.read(0)]
    assert bodies[:2] == [b"one", b"two"]
    assert bodies[2:] in ([b"three", b"four"], [b"four"]), "what came before is there once, or never will be"
    assert bodies[position - 1] == b"four"
    await one.close()
    await proxy.close()


async def _until(call: Callable[[], Awaitable[int]]) -> int:
    for _ in range(100):
        try:
            return await call()
        except (LedgerUnavailable, LedgerUnknown):
            await asyncio.sleep(0.1)
    raise AssertionError("it never came")


@in_a_loop
async def test_an_append_goes_on_when_its_caller_gives_up(url: str) -> None:
    one = opened(url)
    await one.append([b"one"])
    task = asyncio.ensure_future(one.append([b"two"]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(Bug, match="under way"):
        await one.append([b"three"])
    assert await _until(lambda: _appended(one, b"three")) == 3
    assert [entry.body for entry in await one.read(0)] == [b"one", b"two", b"three"]
    await one.close()


async def _appended(ledger: NatsLedger, entry: bytes) -> int:
    try:
        return await ledger.append([entry])
    except Bug:
        raise LedgerUnavailable("the one before is under way") from None


@in_a_loop
async def test_without_a_key_it_is_read_only(url: str) -> None:
    reader = opened(url, None)
    with pytest.raises(LedgerUnavailable, match="does not exist yet"):
        await reader.read(0)
    one = opened(url)
    await one.append([b"one"])
    assert [entry.body for entry in await reader.read(0)] == [b"one"]
    with pytest.raises(LedgerUnavailable, match="without a key"):
        await reader.append([b"two"])
    with pytest.raises(Bug, match="in use"):
        reader.sign_with(SIGNER)
    for ledger in (one, reader):
        await ledger.close()


@in_a_loop
async def test_nobody_there_is_no_reason_not_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OPEN_S", 0.2)
    monkeypatch.setattr(opening, "UP_S", 0.2)
    ledger = opened("nats://127.0.0.1:9/place")
    for call in (ledger.read(0), ledger.append([b"x"]), ledger.checkpoint()):
        with pytest.raises(LedgerUnavailable):
            await call
    await ledger.close()


@in_a_loop
async def test_foreign_streams_and_other_settings_are_refused(url: str) -> None:
    link, place = await NatsLink.open(parse_address(url), name="other"), find_place(url, NAME)
    await link.api(f"STREAM.CREATE.{place.stream}", {"name": place.stream, "subjects": ["else.>"], "storage": "file"})
    with pytest.raises(ConfigError, match="has other settings"):
        opened(url)
    with pytest.raises(ConfigError, match="has other settings"):
        opened(url, None)
    await link.api(f"STREAM.DELETE.{place.stream}")
    await link.api(f"STREAM.CREATE.{place.stream}", {"name": place.stream, **place.log_settings()})
    await link.publish(place.log_subject, b"something else")
    with pytest.raises(LedgerForeign, match="does not begin like a ledger"):
        opened(url)
    await link.close()


@in_a_loop
async def test_how_many_replicas_is_compared_where_the_url_says_so(url: str) -> None:
    one = opened(url)
    await one.append([b"one"])
    with pytest.raises(ConfigError, match="num_replicas is 1, not 3"):
        opened(f"{url}?replicas=3")
    again = opened(f"{url}?replicas=1")
    assert [entry.body for entry in await again.read(0)] == [b"one"]
    for ledger in (one, again):
        await ledger.close()


@in_a_loop
async def test_another_configuration_that_is_seen_only_later_is_foreign(
    server: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPEN_S", 0.2)
    place = find_place(f"{server.url}/place-{next(places)}", NAME)
    proxy = LinkProxy(server.servers[0].plan.port)
    port = await proxy.start()
    proxy.cut()
    late = opened(f"nats://127.0.0.1:{port}/{place.key}")
    link = await NatsLink.open(place.address, name="other")
    await link.api(f"STREAM.CREATE.{place.stream}", {"name": place.stream, "subjects": ["late.>"], "storage": "file"})
    proxy.restore()
    with pytest.raises(LedgerForeign, match="has other settings"):
        await _until(lambda: late.append([b"x"]))
    for one in (link, late, proxy):
        await one.close()


@pytest.mark.parametrize(
    "url", ["nats://127.0.0.1:4222?replicas=2", "nats://127.0.0.1:4222?sync=off", "nats://", f"nats://h:1/{'x' * 200}"]
)
def test_a_url_must_be_one(url: str) -> None:
    with pytest.raises(ConfigError):
        opened(url)


def test_a_server_without_jetstream_is_named(tmp_path: Path) -> None:
    with start_single(tmp_path, has_jetstream=False) as server, pytest.raises(ConfigError, match="without JetStream"):
        opened(server.url)


@in_a_loop
async def test_a_full_store_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    with start_single(tmp_path, file_bytes=4 * 1024 * 1024) as server:
        ledger = opened(server.url)
        written = 0

        async def fill() -> None:
            nonlocal written
            for _ in range(100):
                await ledger.append([bytes([written % 256]) * ENTRY_BYTES_MAX] * 32)
                written += 32

        with pytest.raises(LedgerUnavailable, match="no room"):
            await fill()
        assert written > 0
        assert len(await read_all_known(ledger)) == written
        await ledger.close()


async def read_all_known(ledger: NatsLedger) -> list[LedgerEntry]:
    """What the connection has read: to ask a full ledger where it ends would be a write."""
    entries: list[LedgerEntry] = []
    while found := await ledger.read(entries[-1].position if entries else 0, fresh=False):
        entries += found
    return entries


def test_a_server_that_takes_only_small_messages_is_refused(tmp_path: Path) -> None:
    with (
        start_single(tmp_path, max_payload_bytes=4096) as server,
        pytest.raises(ConfigError, match="max_payload"),
    ):
        opened(server.url)
