"""How large a commit with records can become: at the extremes, and with tables that ask for too much."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import msgpack, structs

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import MESSAGE_BYTES_MAX, encode
from stigmergy.agents.columns import INPUT_BYTES_MAX, OTHER_BYTES, Formatted, Halt, Slot, Stretch, Template, Text
from stigmergy.agents.effects import CancelWake, Effects, Events, Publish, Tell, WakeMe, WakeMeAt
from stigmergy.agents.messages import Command, Effect, Event
from stigmergy.agents.supervision import Supervise
from stigmergy.base.errors import Bug, DefinitionError
from stigmergy.shard.column_dispatch import DECLARED_BYTES_MAX
from stigmergy.shard.commit import COMMIT_BYTES_MAX
from stigmergy.shard.draft import COLUMNS_REST_BYTES, DRAFT_BYTES_MAX, OVERHEAD_BYTES, pack_effect
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import Ask, ColumnDelivery, Delivery
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import DECISION_BYTES_MAX, Limits, ShardState
from tests.agents.meters import Alarm, Hush, Meters, Mode, Seen
from tests.agents.plain_table import PlainEngine, compiled
from tests.shard.shards import Probe

SMALL = 256 * 1024
FLAGS = [f"flag_{number:03}_{'x' * 40}" for number in range(1_000)]


def wide() -> Any:
    """An event with a thousand flags, whose names make it as long in words as it is short as a record."""
    namespace: dict[str, Any] = dict.fromkeys(FLAGS, False)
    annotations = {"__annotations__": dict.fromkeys(FLAGS, bool)}
    make: Any = type(Event)
    return make("Flagged", (Event,), {"__module__": __name__, **annotations, **namespace})


Flagged: Any = wide()


class SetFlags(Command):
    on: int


class Panel(Agent):
    """Fails on what it is told to, in many words."""

    n: int = 0
    supervision = Supervise(stop_after=1)

    @decide
    def set_flags(self, command: SetFlags) -> Events:
        yield Flagged(**{FLAGS[0]: True})

    @evolve
    def flagged(self, event: Flagged) -> None:
        if getattr(event, FLAGS[1]):
            raise ValueError("ü" * 600)
        self.n += 1

    @react
    def on_flagged(self, event: Flagged) -> Effects:
        if getattr(event, FLAGS[0]):
            yield Hush(pad="x" * (INPUT_BYTES_MAX - 1_024 - OTHER_BYTES - 20))


class Blurted(Event):
    pad: str


class Blurt(Command):
    pad: str


class Blurter(Agent):
    """An interpreted agent that fills commits."""

    @decide
    def blurt(self, command: Blurt) -> Events:
        yield Blurted(pad="x" * (80 * 1024 - 300))

    @evolve
    def blurted(self, event: Blurted) -> None:
        pass


class Panels(Probe):
    def __init__(self, columns_bytes_max: int = SMALL) -> None:
        limits = Limits(columns_bytes_max=columns_bytes_max)
        super().__init__(Blurter, limits=limits, plans={"Panel": compiled(PlainEngine(Panel))})

    def records(self, *names_and_flags: tuple[int, int]) -> bytes:
        table = self.state.tables["Panel"]
        return b"".join(
            table.record_of(agent, Flagged() if flag < 0 else Flagged(**{FLAGS[flag]: True}))
            for agent, flag in names_and_flags
        )

    def batch(self, records: bytes) -> ColumnDelivery:
        table = self.state.tables["Panel"]
        known = table.check_of(table.generation)
        assert known is not None
        count = len(records) // table.layout.record_bytes
        return ColumnDelivery("ü" * 256, "Panel", table.layout_digest, table.generation, known[1], records, count, 1)

    def sealed_bytes(self) -> int:
        """Seals; what was counted is no less than what it is."""
        counted_bytes = self.shard.draft_size_bytes
        ready = self.shard.seal()
        assert ready is not None
        self.log.append(ready.sealed.body)
        assert len(ready.sealed.body) <= counted_bytes + 200
        return len(ready.sealed.body)


def fill(probe: Panels, size_bytes: int = DRAFT_BYTES_MAX) -> None:
    """Fills the draft with messages, up to just that size."""
    room_bytes = size_bytes - probe.shard.draft_size_bytes
    while room_bytes > 400:
        body = encode(Blurted(pad="x" * (min(room_bytes, 60_000) - 300)))
        probe.step(Delivery("s", [("Blurter/b", body)]))
        room_bytes = size_bytes - probe.shard.draft_size_bytes
    assert 0 <= room_bytes <= 400


def test_what_tables_and_the_core_agree_on() -> None:
    assert INPUT_BYTES_MAX == DECISION_BYTES_MAX
    assert 64 + 1 + 128 + OVERHEAD_BYTES == OTHER_BYTES
    assert DECLARED_BYTES_MAX + INPUT_BYTES_MAX < SMALL, "an empty commit has room for a first record"
    with pytest.raises(Exception, match="columns_bytes_max=262143: give 262144 to"):
        Limits(columns_bytes_max=SMALL - 1)


@pytest.mark.parametrize(
    "effect",
    [
        Tell(to="Board/main", message=Seen(level=1.0)),
        Publish(topic="t", event=Seen(level=1.0)),
        WakeMe(name="n", after_s=1.0),
        WakeMeAt(name="n", at_s=4_000_000_000.0),
        CancelWake(name="n"),
        Hush(pad="x" * 300),
        Alarm(level=1.0, mode=Mode.CALM, text="t"),
    ],
    ids=lambda effect: type(effect).__name__,
)
def test_an_effect_takes_no_more_than_a_table_counts(effect: Effect) -> None:
    probe = Meters("a")
    _, body = pack_effect(probe.state, Homes(), effect, (None, b""), 10**18)
    assert len(body) <= len(encode(effect))


def test_the_largest_record_that_fails_at_the_end_of_the_room() -> None:
    probe = Panels()
    probe.observe("Panel/p", Flagged())
    good, bad = probe.records((0, -1)), probe.records((0, 1))
    assert len(good) == 1_024 - 16
    fill(probe)
    assert probe.shard.draft_size_bytes > SMALL - INPUT_BYTES_MAX
    (left,) = probe.step(probe.batch(good)).left
    assert left.start == 0, "a stretch is begun only where any record finds room"  # type: ignore[union-attr]
    probe.sealed_bytes()
    fill(probe, SMALL - INPUT_BYTES_MAX - 3_000)
    count = INPUT_BYTES_MAX // len(good)
    probe.step(probe.batch(good * count + bad + good))
    (letter,) = probe.state.letters.all()[:1]
    assert 50_000 < len(letter.input) < MESSAGE_BYTES_MAX
    assert list(probe.state.stopped) == ["Panel/p"]
    assert SMALL < probe.sealed_bytes() < SMALL + COLUMNS_REST_BYTES


def test_the_largest_record_at_the_end_of_the_room() -> None:
    probe = Panels()
    probe.observe("Panel/p", Flagged())
    large = probe.records((0, 0))
    stepped = probe.step(probe.batch(large * 10))
    assert probe.state.agents == {}
    (rest,) = stepped.left
    assert rest.start == 3  # type: ignore[union-attr]
    assert SMALL - INPUT_BYTES_MAX < probe.sealed_bytes() < SMALL


def test_everything_at_once_with_single_messages() -> None:
    probe = Panels()
    probe.observe("Blurter/b", Blurted(pad=""))
    fill(probe)
    command = encode({"type": "SetFlags@1", "on": 1, "unknown here": "y" * 65_000})
    left = probe.step(Ask("Panel/new", "c" * 200, command), Ask("Panel/new", "d", command)).left
    assert len(left) == 1
    # A full draft, the declaration, all that an input may cause, and the answer with the command.
    assert DRAFT_BYTES_MAX + 58_000 + 80_000 + 65_000 < probe.sealed_bytes() < COMMIT_BYTES_MAX
    fill(probe)
    failing = Ask("Blurter/b", "e" * 200, encode(Blurt(pad="y" * 60_000)))
    probe.step(failing)
    assert probe.sealed_bytes() < COMMIT_BYTES_MAX


@pytest.mark.parametrize("columns_bytes_max", [SMALL, 2 * 1024 * 1024])
def test_messages_and_records_of_all_sizes(columns_bytes_max: int) -> None:
    probe = Panels(columns_bytes_max)
    probe.observe("Panel/p", Flagged())
    probe.observe("Panel/q", Flagged())
    fill(probe, DRAFT_BYTES_MAX - 1)
    probe.step(Ask("Blurter/b", "c" * 200, encode(Blurt(pad="y" * 60_000))))
    items = [(0, 0), (0, -1), (1, 1), (1, -1), (0, -1)] * 20
    inputs: list[Any] = [probe.batch(probe.records(*items))]
    commits = 0
    while inputs:
        inputs = probe.step(*inputs).left
        assert probe.sealed_bytes() < max(columns_bytes_max + COLUMNS_REST_BYTES, COMMIT_BYTES_MAX)
        commits += 1
    assert commits > (3 if columns_bytes_max == SMALL else 1)
    assert probe.state.marks.consumed("ü" * 256, 0) == len(items)


def test_a_table_that_makes_too_much_is_found_out() -> None:
    probe = Panels()
    probe.observe("Panel/p", Flagged())
    table: Any = probe.state.tables["Panel"]
    record = probe.records((0, -1))
    table.step = lambda *_, **__: Stretch(1, record * 600, 600)
    probe.step(probe.batch(record))
    with pytest.raises(Bug, match=r"shard 0: a commit of \d+ bytes, 524288 at most"):
        probe.shard.seal()


def test_a_table_that_finds_no_room_for_anything() -> None:
    probe = Panels()
    probe.observe("Panel/p", Flagged())
    record = probe.records((0, -1))
    table: Any = probe.state.tables["Panel"]
    table.step = lambda *_, **__: Stretch(0, b"", 0, halt=Halt.FULL)
    with pytest.raises(Bug, match=r"the table of Panel finds no room for a record in \d+ bytes"):
        probe.step(probe.batch(record))
    with pytest.raises(Bug, match="restart it from its journal"):
        probe.step()


def test_a_table_that_does_not_say_what_failed() -> None:
    probe = Panels()
    probe.observe("Panel/p", Flagged())
    table: Any = probe.state.tables["Panel"]
    table.step = lambda *_, **__: Stretch(0, b"", 0, halt=Halt.FAULT)
    probe.observe("Panel/p", Flagged())
    assert probe.letters() == ["Bug: the table of Panel does not say what has failed"]


# Classes that cannot be written down.


class Thin(Agent):
    n: int = 0

    @evolve
    def seen(self, event: Seen) -> None:
        self.n += 1


def shard_of(engine: PlainEngine) -> Shard:
    return Shard(ShardState(0, {"Thin": compiled(engine)}))


def test_a_class_that_takes_too_much_to_describe() -> None:
    engine = PlainEngine(Thin)
    members = [(f"M{number}", encode(number)) for number in range(9_000)]
    (form,) = engine.layout.forms
    form.columns.append(structs.replace(form.columns[0], name="mode", code="e2", members=members))
    with pytest.raises(DefinitionError, match=r"Thin: it takes \d+ bytes to describe its messages, 65536 at most"):
        shard_of(engine)


def test_a_class_that_nobody_could_read() -> None:
    engine = PlainEngine(Thin)
    engine._layout = structs.replace(engine.layout, record_bytes=2_048)
    with pytest.raises(DefinitionError, match="Thin: nobody could read what it keeps: records of 2048 bytes"):
        shard_of(engine)
    engine = PlainEngine(Thin)
    text = Text([Formatted(0, "f8", "9999.1f")])
    engine.templates.templates.append(Template("Alarm@1", [("text", text), ("level", Slot(0, "f8"))]))
    with pytest.raises(DefinitionError, match=re.escape("Thin: nobody could read what it keeps: templates")):
        shard_of(engine)


def test_words_of_a_record_are_a_message() -> None:
    probe = Panels()
    probe.observe("Panel/p", Flagged(**{FLAGS[5]: True}))
    assert msgpack.decode(encode(Flagged(**{FLAGS[5]: True})))[FLAGS[5]] is True
    assert probe.state.tables["Panel"].agent(0, ahead=True).n == 1
