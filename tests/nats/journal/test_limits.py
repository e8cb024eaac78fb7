"""A journal on NATS where there is no room, where a stream is another's, where a server is not what it must be."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest

from stigmergy.app.journals import find_parts, inspect_all, inspect_journal
from stigmergy.base.errors import ConfigError, JournalForeign, JournalFull, LinkDown
from stigmergy.journal.port import JournalIdentity, SnapshotPart
from stigmergy.nats.address import parse_address
from stigmergy.nats.journal import inspect_journals, open_journal
from stigmergy.nats.journal.messages import END, PIECE, describe
from stigmergy.nats.journal.opener import replicated
from stigmergy.nats.journal.shard_log import open_shard_log
from stigmergy.nats.journal.stream import LogPlace
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import snapshots_bucket
from stigmergy.nats.threaded import BlockingLink
from stigmergy.testing.journal_contract import CommitChain, stored
from stigmergy.testing.nats import NatsCluster, start_single
from tests.nats.journal.writing import IDENTITY, outcome_of

LARGE = b"x" * 50_000


@pytest.fixture
def tight_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """With room for 2 MB, and for messages of 8 KB."""
    folder = tmp_path_factory.mktemp("nats")
    with start_single(folder, file_bytes=2_000_000, max_payload_bytes=8_192) as single:
        yield single


async def settings_of(server: NatsCluster, call: str, settings: dict[str, object]) -> None:
    link = await NatsLink.open(parse_address(server.url), name="settings")
    await link.api(call, settings)
    await link.close()


# ---------------------------------------------------------------------- room


async def test_full_stream_keeps_nothing_of_the_group_and_goes_on_when_there_is_room(
    server: NatsCluster, place: str
) -> None:
    url = f"{server.url}/{place}?max_bytes=1000000"
    journal, chain = open_journal(url, IDENTITY), CommitChain()
    groups = [chain.group([0], LARGE) for _ in range(40)]
    kept = 0
    while (error := await outcome_of(journal.append(groups[kept]))) is None:
        kept += 1
    assert isinstance(error, JournalFull)
    assert "max_bytes" in str(error)
    assert list(journal.read(0)) == stored(*groups[:kept], shard=0)
    assert journal.size().bytes_free < 100_000
    assert isinstance(await outcome_of(journal.append(groups[kept])), JournalFull)
    await journal.drop(0, kept - 2)
    assert journal.size().bytes_free > 800_000
    await journal.append(groups[kept])
    assert list(journal.read(0)) == stored(*groups[kept - 2 : kept + 1], shard=0)
    await journal.close()
    journal = open_journal(url, IDENTITY)
    assert (journal.first_position(0), journal.heads()[0].position) == (kept - 1, kept + 1)
    assert list(journal.read(0)) == stored(*groups[kept - 2 : kept + 1], shard=0)
    await journal.close()


async def test_full_server_refuses_commits_and_snapshots(tight_server: NatsCluster) -> None:
    journal, chain = open_journal(tight_server.url, IDENTITY), CommitChain()
    groups = [chain.group([0], LARGE) for _ in range(60)]
    kept = 0
    while (error := await outcome_of(journal.append(groups[kept]))) is None:
        kept += 1
    assert isinstance(error, JournalFull)
    assert "max_file" in str(error)
    assert isinstance(await outcome_of(journal.put_snapshot(0, 3, [SnapshotPart(0, LARGE)])), JournalFull)
    await journal.drop(0, kept - 2)
    await journal.append(groups[kept])
    await journal.put_snapshot(0, 4, [SnapshotPart(0, LARGE)])
    assert list(journal.read_snapshot(0, 4)) == [SnapshotPart(0, LARGE)]
    assert list(journal.read(0)) == stored(*groups[kept - 2 : kept + 1], shard=0)
    await journal.close()


async def test_groups_and_snapshots_larger_than_a_message_go_in_pieces(tight_server: NatsCluster) -> None:
    journal, chain = open_journal(tight_server.url, IDENTITY), CommitChain()
    small, large = chain.group([0], b"s"), chain.group([0, 0], LARGE)
    await journal.append(small)
    await journal.append(large)
    log = await journal._log()
    kinds = [entry.kind for entry in await log.fetch(3)]
    assert kinds == [*[PIECE] * (len(kinds) - 1), END]
    assert len(kinds) > 12
    await journal.put_snapshot(0, 1, [SnapshotPart(0, LARGE), SnapshotPart(1, b"")])
    await journal.close()
    journal = open_journal(tight_server.url, IDENTITY)
    assert list(journal.read(0)) == stored(small, large, shard=0)
    assert list(journal.read(0, after=2)) == stored(small, large, shard=0)[2:]
    assert list(journal.read_snapshot(0, 1)) == [SnapshotPart(0, LARGE), SnapshotPart(1, b"")]
    await journal.close()


# ---------------------------------------------------------------------- whose it is


async def test_another_configuration_is_named(server: NatsCluster, place: str) -> None:
    await open_journal(f"{server.url}/{place}", IDENTITY).close()
    with pytest.raises(ConfigError, match="max_bytes is -1, not 5000"):
        open_journal(f"{server.url}/{place}?max_bytes=5000", IDENTITY)
    stream = LogPlace(place, 0, 0)
    settings: dict[str, object] = {"name": stream.stream, "subjects": [f"{stream.subject}.*"], "deny_delete": True}
    settings |= {"allow_direct": True, "discard": "new", "max_age": 10**15, "duplicate_window": 10**9}
    await settings_of(server, f"STREAM.UPDATE.{stream.stream}", {**settings, "metadata": describe(IDENTITY)})
    with pytest.raises(ConfigError, match="max_age is 1000000000000000, not 0"):
        open_journal(f"{server.url}/{place}", IDENTITY)


async def test_a_stream_that_is_no_log_is_foreign(server: NatsCluster, place: str) -> None:
    stream = LogPlace(place, 0, 0)
    settings: dict[str, object] = {"name": stream.stream, "subjects": [f"{stream.subject}.*"]}
    await settings_of(server, f"STREAM.CREATE.{stream.stream}", settings)
    with pytest.raises(JournalForeign, match="not a stigmergy log"):
        open_journal(f"{server.url}/{place}", IDENTITY)
    with pytest.raises(JournalForeign, match="not a stigmergy log"):
        inspect_journals(f"{server.url}/{place}")
    later = {**settings, "metadata": {**describe(IDENTITY), "stigmergy.format": "2"}}
    await settings_of(server, f"STREAM.UPDATE.{stream.stream}", later)
    with pytest.raises(JournalForeign, match="format 2"):
        open_journal(f"{server.url}/{place}", IDENTITY)
    broken = {**settings, "metadata": {**describe(IDENTITY), "stigmergy.shards": "many"}}
    await settings_of(server, f"STREAM.UPDATE.{stream.stream}", broken)
    with pytest.raises(JournalForeign, match="metadata"):
        open_journal(f"{server.url}/{place}", IDENTITY)


async def test_agents_that_were_shared_out_otherwise_are_foreign(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    await open_journal(url, msgspec.structs.replace(IDENTITY, shard_by="zone_of")).close()
    with pytest.raises(JournalForeign, match="zone_of"):
        open_journal(url, IDENTITY)


async def test_a_log_of_workers_is_not_run_as_a_whole(server: NatsCluster, place: str) -> None:
    link = await NatsLink.open(parse_address(f"{server.url}/{place}"), name="log")
    whole = JournalIdentity(fleet="delivery", shards=4, incarnation=7)
    chain = CommitChain()
    for shard in range(4):
        log = await open_shard_log(link, msgspec.structs.replace(whole, part=(shard, shard)))
        journal, _ = await log.claim(0, "a")
        await journal.append(chain.group([shard]))
        await journal.close()
        await log.close()
    with pytest.raises(JournalForeign, match="stigmergy worker"):
        open_journal(f"{server.url}/{place}", whole)
    with pytest.raises(ConfigError, match="one shard"):
        await open_shard_log(link, whole)
    await link.close()

    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="part=0"):
        inspect_journal(f"{server.url}/{place}")
    left = [one.name for one in threading.enumerate() if one not in before and one.name.startswith("nats ")]
    assert left == [], "what was refused is closed"
    assert find_parts(f"{server.url}/{place}") == [f"{server.url}/{place}?part={shard}" for shard in range(4)]
    assert find_parts(f"{server.url}/{place}?part=1") == []
    third = inspect_journal(f"{server.url}/{place}?part=2")
    assert (third.identity.part, [head.shard for head in third.heads()]) == ((2, 2), [2])
    await third.close()
    joined = inspect_all(f"{server.url}/{place}")
    assert [head.shard for head in joined.heads()] == [0, 1, 2, 3]
    assert [len(list(joined.read(shard))) for shard in range(4)] == [1, 1, 1, 1]
    await joined.close()
    with pytest.raises(ConfigError, match="part=9"):
        inspect_journal(f"{server.url}/{place}?part=9")


async def test_the_fleet_to_look_at_is_the_only_one_or_the_one_that_is_named(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with start_single(tmp_path_factory.mktemp("nats")) as empty:
        with pytest.raises(ConfigError, match="no log"):
            inspect_journals(empty.url)
        await open_journal(empty.url, IDENTITY).close()
        (only,) = inspect_journals(empty.url)
        assert only.identity == IDENTITY
        await only.close()
        odd = msgspec.structs.replace(IDENTITY, fleet="süd.1 *")
        await open_journal(empty.url, odd).close()
        with pytest.raises(ConfigError, match="delivery, süd"):
            inspect_journals(empty.url)
        (named,) = inspect_journals(f"{empty.url}/süd.1 *")
        assert named.identity == odd
        await named.close()
        with pytest.raises(ConfigError, match="there are delivery"):
            inspect_journals(f"{empty.url}/nowhere")


# ---------------------------------------------------------------------- the server


@pytest.mark.parametrize(
    ("url", "replicas"),
    [("nats://a,b", 1), ("nats://a,b,c", 3), ("nats://a,b,c?replicas=1", 1), ("nats://a?replicas=5", 5)],
)
def test_three_servers_keep_three_replicas(url: str, replicas: int) -> None:
    assert replicated(parse_address(url)).replicas == replicas


def test_nobody_there_and_wrong_urls(server: NatsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockingLink.__init__, "__kwdefaults__", {"open_s": 0.5})
    with pytest.raises(LinkDown, match="check the URL"):
        open_journal("nats://127.0.0.1:9", IDENTITY)
    for url, said in (
        (f"{server.url}?replicas=2", "replicas=2"),
        (f"{server.url}?max_bytes=much", "max_bytes=much"),
        (f"{server.url}?speed=9", "speed"),
        (f"{server.url}?replicas=3", "3 replicas"),
    ):
        with pytest.raises(ConfigError, match=said):
            open_journal(url, IDENTITY)


def test_server_without_jetstream_or_with_tiny_messages(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        start_single(tmp_path_factory.mktemp("nats"), has_jetstream=False) as bare,
        pytest.raises(ConfigError, match="without JetStream"),
    ):
        open_journal(bare.url, IDENTITY)
    with (
        start_single(tmp_path_factory.mktemp("nats"), max_payload_bytes=1024) as tiny,
        pytest.raises(ConfigError, match="max_payload"),
    ):
        open_journal(tiny.url, IDENTITY)


def test_the_package_that_is_missing_is_named() -> None:
    program = (
        "import sys; sys.modules['nats'] = None\n"
        "from stigmergy.app.journals import inspect_journal, open_journal\n"
        "from stigmergy.base.errors import ConfigError\n"
        "for work in (lambda: open_journal('nats://hub', 'f', 1), lambda: inspect_journal('tls://hub')):\n"
        "    try: work()\n"
        "    except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count('pip install "stigmergy[nats]"') == 2


async def test_a_log_of_which_only_snapshots_are_left_is_not_begun_anew(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    journal, chain = open_journal(url, IDENTITY), CommitChain()
    await journal.append(chain.group([0]))
    await journal.put_snapshot(0, 1, [SnapshotPart(0, b"state")])
    await journal.close()
    lost = LogPlace(place, IDENTITY.owned[0], IDENTITY.owned[-1]).stream
    await settings_of(server, f"STREAM.DELETE.{lost}", {})
    with pytest.raises(JournalForeign, match="deleted or lost; restore it"):
        open_journal(url, IDENTITY)
    await settings_of(server, f"STREAM.DELETE.{snapshots_bucket(place)}", {})
    journal = open_journal(url, IDENTITY)
    assert journal.heads() == []
    await journal.close()
