"""A look back sees the very state that a replay up to there ends in, from snapshots and from the log alone."""

import pytest
from msgspec import structs

from stigmergy import Agent, Command, Event, Events, Fleet, Settings, Snapshots, decide, evolve
from stigmergy.audit.history import History, Moment, read_at, read_moment
from stigmergy.base.errors import ConfigError, JournalCorrupt, UnknownKind
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity, SnapshotPart, StoredCommit
from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.host import open_host
from stigmergy.shard.homes import shard_of

SIGNER = Ed25519Signer(b"h" * 32)


class Note(Command):
    text: str


class Noted(Event):
    text: str


class Diary(Agent):
    pages: tuple[str, ...] = ()

    @decide
    def note(self, command: Note) -> Events:
        yield Noted(text=command.text)

    @evolve
    def noted(self, event: Noted) -> None:
        self.pages = (*self.pages, event.text)


FLEET = Fleet(
    "diaries",
    agents=[Diary],
    shards=2,
    settings=Settings(snapshots=Snapshots(every_events=12, tail_ratio=0.0, share_max=1000.0)),
)
NAMES = [f"Diary/{number}" for number in range(5)]


@pytest.fixture
async def store() -> MemoryJournalStore:
    """The journal of a node that has run twice."""
    store = MemoryJournalStore(JournalIdentity(fleet=FLEET.name, shards=FLEET.shards, incarnation=1))
    for start in range(2):
        store.owner = None
        host = open_host(FLEET, MemoryJournal(store), SIGNER, Ed25519Verifier(), SystemClock())
        await host.start()
        live = Live(host, SystemEntropy())
        for number in range(50):
            await live.send(NAMES[number % 5], Note(text=f"{start}.{number}"))
        await host.stop()
    store.owner = None
    return store


def replayed(journal: MemoryJournal, shard: int, upto: int) -> dict[str, object]:
    recovery = Recovery(journal, FLEET.plans, Ed25519Verifier(), FLEET.settings.limits)
    return recovery.replay_from_start(shard, upto=upto).agents


def test_every_position_is_what_a_replay_says(store: MemoryJournalStore) -> None:
    journal = MemoryJournal(store)
    history = History(journal, FLEET.plans)
    assert all(journal.snapshots(shard) for shard in range(2))
    for head in journal.heads():
        for position in (*range(0, head.position, 7), head.position):
            agents = replayed(journal, head.shard, position)
            for name in NAMES:
                sight = history.look(name, Moment(position=position)) if _lives_in(name, head.shard) else None
                if sight is not None:
                    assert sight.position == position
                    assert sight.known == (name in agents)
                    assert sight.agent == agents.get(name, Diary(id=name.removeprefix("Diary/")))


def _lives_in(name: str, shard: int) -> bool:
    return shard_of(name, FLEET.shards) == shard


def test_a_time_is_the_last_commit_by_then(store: MemoryJournalStore) -> None:
    history = History(MemoryJournal(store), FLEET.plans)
    newest = history.look(NAMES[0], Moment())
    kept = store.commits[newest.shard]
    for stored in kept[::9]:
        sight = history.look(NAMES[0], Moment(time_ns=stored.sealed.time_ns))
        assert sight.time_ns == stored.sealed.time_ns
        assert sight.position >= stored.sealed.position
    with pytest.raises(ConfigError, match="this log begins at "):
        history.look(NAMES[0], Moment(time_ns=kept[0].sealed.time_ns - 1))


async def test_without_the_beginning_of_the_log(store: MemoryJournalStore) -> None:
    journal = MemoryJournal(store)
    history = History(journal, FLEET.plans)
    shard = history.look(NAMES[0], Moment()).shard
    whole = history.look(NAMES[0], Moment(position=journal.snapshots(shard)[-1] + 1))
    first = journal.snapshots(shard)[0]
    await journal.drop(shard, first)
    assert history.look(NAMES[0], Moment(position=whole.position)).agent == whole.agent
    with pytest.raises(ConfigError, match="what was before has been dropped"):
        history.look(NAMES[0], Moment(position=first - 1))


def test_a_snapshot_that_was_changed_is_passed_over(store: MemoryJournalStore) -> None:
    journal = MemoryJournal(store)
    history = History(journal, FLEET.plans)
    before = [history.look(name, Moment()) for name in NAMES]
    for key, parts in store.snapshots.items():
        store.snapshots[key] = [SnapshotPart(part.part, part.body[:-1]) for part in parts]
    assert [history.look(name, Moment()) for name in NAMES] == before


def test_changed_bytes_are_refused(store: MemoryJournalStore) -> None:
    journal = MemoryJournal(store)
    history = History(journal, FLEET.plans)
    shard = history.look(NAMES[0], Moment()).shard
    store.snapshots.clear()
    stored = store.commits[shard][3]
    sealed = structs.replace(stored.sealed, body=stored.sealed.body + b"x")
    store.commits[shard][3] = StoredCommit(sealed, stored.signature)
    with pytest.raises(JournalCorrupt, match="position 4"):
        history.look(NAMES[0], Moment())


def test_what_cannot_be_looked_at(store: MemoryJournalStore) -> None:
    history = History(MemoryJournal(store), FLEET.plans)
    with pytest.raises(UnknownKind):
        history.look("Book/1", Moment())
    with pytest.raises(ConfigError, match="goes from 0 to"):
        history.look(NAMES[0], Moment(position=10_000))
    unknown = history.look("Diary/nobody", Moment())
    assert (unknown.known, unknown.agent) == (False, Diary(id="nobody"))


def test_moments_as_people_write_them() -> None:
    assert read_moment("4711") == Moment(position=4711)
    assert read_moment("1970-01-01T00:00:01.5Z") == Moment(time_ns=1_500_000_000)
    assert read_moment("1970-01-01T02:00:01+02:00") == Moment(time_ns=1_000_000_000)
    assert read_at("4711") == Moment(position=4711)
    assert read_at("1970-01-01T00:00:01.5Z") == Moment(time_ns=1_500_000_999), "all of this microsecond"
    for text in ("", "now", "-5", "٤", "1970-13-01T00:00:00Z"):
        with pytest.raises(ConfigError, match="neither a position nor a time"):
            read_moment(text)
    with pytest.raises(ConfigError, match="no time zone"):
        read_moment("2026-11-15T08:00:00")
