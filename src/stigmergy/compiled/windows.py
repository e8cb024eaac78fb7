"""Windows in compiled code: their place in a row, and the lines that load them, add an event, and store them.

The head of a window is loaded into locals and stored when everything that an input causes has succeeded. An entry is
written at once, into a slot behind those of the stored head: if something fails later, it was never there. A window by
event time may have expired entries in its middle: they are skipped, and removed when it is stored.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from stigmergy.agents.columns import ROW_BYTES_MAX, Column, Halt
from stigmergy.agents.messages import SECOND_NS, Message, spec_of
from stigmergy.agents.windows import HEAD_BYTES, TIME_BYTES, TIME_NS_MAX, Shape, Window, WindowColumns
from stigmergy.compiled.faults import int_of_infinity, int_of_nan, number_at
from stigmergy.compiled.frames import SLOTS_AT, Body, FormInfo, Lines, RecordView, Unit, load, store
from stigmergy.compiled.program import Site
from stigmergy.compiled.values import FLOAT, INT, Value

_HEAD = (("count", "u4", 0), ("first", "u4", 4), ("seen", "i8", 8), ("dropped", "i8", 16), ("ahead", "i8", 24))


class WindowInfo(Struct, frozen=True):
    """One window of the class that is compiled."""

    name: str
    window: Window[Any]
    """In its first state."""
    form: FormInfo
    """Of its events."""
    lies: WindowColumns
    offset: int
    """In the row."""

    @property
    def by_event(self) -> bool:
        """Whether entries have times of their own, in any order."""
        return bool(self.window.by)

    @property
    def length(self) -> str:
        """The local with the number of entries."""
        return self.local("live" if self.by_event else "count")

    @property
    def words(self) -> int:
        """Of an entry."""
        return self.lies.entry_bytes // 8

    def local(self, what: str) -> str:
        """The name of a local."""
        return f"w_{self.name}_{what}"

    def find(self, lines: Lines, place: str, number: str) -> None:
        """The lines that say at which word of the rows the entry with a number lies, the oldest being 0."""
        lines.add(f"{place} = {self.local('first')}" + (f" + {number}" if number != "0" else ""))
        if number != "0":
            lines.add(f"if {place} >= {self.lies.slots}:")
            lines.add(f"    {place} -= {self.lies.slots}")
        lines.add(f"{place} = row + {(self.offset + HEAD_BYTES) // 8} + {place} * {self.words}")


def lay_out_window(
    unit: Unit, name: str, window: Window[Any], form: FormInfo, offset: int, spare: int
) -> tuple[WindowInfo, int]:
    """A window at a place of the row, with so many spare slots; and the end of it."""
    end = max([TIME_BYTES, *(column.offset + column.size_bytes for column in form.columns.values())])
    lies = WindowColumns(
        shape=int(window.shape),
        span=window.span,
        count_max=window.count_max,
        by=window.by,
        ahead_ns=window.ahead_ns,
        tag=spec_of(form.message).tag,
        slots=window.count_max + spare,
        entry_bytes=-(-end // 8) * 8,
        columns=[form.columns[field] for field in form.fields],
    )
    field = form.fields.get(window.by)
    says = ""
    plain: Window[Any] = Window(
        shape=window.shape, span=window.span, count_max=window.count_max, by=window.by, ahead_ns=window.ahead_ns
    )
    made_so = type(window.shape) is Shape and window == plain and window.count_max >= 1
    if not made_so or (window.shape is Shape.LAST and window.by):
        says = "a window of your own making; write Window.last(…) or Window.sliding(…)"
    if form.message.__module__.startswith(("stigmergy.agents", "stigmergy.shard", "stigmergy.devices")):
        says = f"{form.message.__name__} is of the framework, and has texts; take a window of an event of your own"
    if window.by and field is not None and field.kind not in (INT, FLOAT):
        says = f"by={window.by!r} is {field.kind} and no time; take a field with seconds since 1970, float or int"
    free = ROW_BYTES_MAX - offset - HEAD_BYTES
    if lies.size_bytes > ROW_BYTES_MAX - offset:
        fitting = max(free // lies.entry_bytes - spare, 0)
        given = "Window.last(…)" if window.shape is Shape.LAST else "count_max="
        says = (
            f"{window.count_max} entries of {lies.entry_bytes} bytes each, and a row has {ROW_BYTES_MAX} in all; "
            f"{fitting} have room here, so give {given} {fitting} at most, or fold what you need into fields"
        )
    if says:
        unit.findings.add_of(unit.cls, f"{unit.cls.__name__}.{name}", says, name)
    return WindowInfo(name, window, form, lies, offset), offset + lies.size_bytes


def load_windows(lines: Lines, body: Body) -> None:
    """Loads the heads of all windows that are used."""
    for info in body.windows.values():
        for value, column in _head(info):
            load(lines, value, column, "row", "row")
        if info.by_event:
            lines.add(f"{info.local('live')} = {info.local('count')}")
            lines.add(f"{info.local('limit')} = {info.local('seen')} - {info.window.span}")


def store_windows(lines: Lines, body: Body) -> None:
    """Stores the heads of all windows that were added to."""
    for info in body.fed.values():
        if info.by_event:
            _compact(lines, info)
        for value, column in _head(info):
            store(lines, value, column, "row", "row")


def add_to_window(lines: Lines, unit: Unit, body: Body, record: RecordView, info: WindowInfo) -> None:
    """One more event, before any handler sees it."""
    body.windows.setdefault(info.name, info)
    body.fed.setdefault(info.name, info)
    lines.add(f"# {unit.cls.__name__}.{info.name}")
    if not info.by_event:
        _add(lines, record, info, "now_ns")
        return
    time = info.local("time")
    _read_time(lines, unit, body, record, info, time)
    with lines.block(f"if {time} > now_ns + {info.window.ahead_ns}:"):
        lines.add(f"{info.local('ahead')} += 1")
    with lines.block("else:"):
        _add(lines, record, info, time)


def _add(lines: Lines, record: RecordView, info: WindowInfo, time: str) -> None:
    window, seen, count = info.window, info.local("seen"), info.local("count")
    lines.add(f"if {time} > {seen}:")
    lines.add(f"    {seen} = {time}")
    if not info.by_event:
        _append(lines, record, info, time)
        if window.shape is Shape.SLIDING:
            # Our own time never goes back: what is too old is in front.
            lines.add(f"{info.local('limit')} = {seen} - {window.span}")
            _drop_old(lines, info)
        with lines.block(f"if {count} > {window.count_max}:"):
            _drop_first(lines, info)
            if window.shape is Shape.SLIDING:
                lines.add(f"{info.local('dropped')} += 1")
        return
    live, place = info.local("live"), info.local("place")
    lines.add(f"{info.local('limit')} = {seen} - {window.span}")
    with lines.block(f"if {time} > {info.local('limit')}:"):
        _append(lines, record, info, time)
        _drop_old(lines, info)
        lines.add(f"{live} = 0")
        with lines.block(f"for number in range({count}):"):
            info.find(lines, place, "number")
            lines.add(f"if row_i8[{place}] > {info.local('limit')}:")
            lines.add(f"    {live} += 1")
        with lines.block(f"if {live} > {window.count_max}:"):
            _drop_first(lines, info)
            lines.add(f"{live} -= 1")
            lines.add(f"{info.local('dropped')} += 1")
            _drop_old(lines, info)


def _append(lines: Lines, record: RecordView, info: WindowInfo, time: str) -> None:
    place, count = info.local("place"), info.local("count")
    info.find(lines, place, count)
    lines.add(f"row_i8[{place}] = {time}")
    for word in range(1, info.words):
        lines.add(f"row_i8[{place} + {word}] = {record.arrays}_i8[{record.base} + {word}]")
    lines.add(f"{count} += 1")


def _drop_first(lines: Lines, info: WindowInfo) -> None:
    first = info.local("first")
    lines.add(f"{info.local('count')} -= 1")
    lines.add(f"{first} += 1")
    lines.add(f"if {first} == {info.lies.slots}:")
    lines.add(f"    {first} = 0")


def _drop_old(lines: Lines, info: WindowInfo) -> None:
    place = info.local("place")
    with lines.block(f"while {info.local('count')} > 0:"):
        info.find(lines, place, "0")
        lines.add(f"if row_i8[{place}] > {info.local('limit')}:")
        lines.add("    break")
        _drop_first(lines, info)


def _compact(lines: Lines, info: WindowInfo) -> None:
    """Takes out what is too old in the midst of a window."""
    count, live, place, target = (info.local(what) for what in ("count", "live", "place", "target"))
    with lines.block(f"if {count} != {live}:"):
        lines.add(f"{live} = 0")
        with lines.block(f"for number in range({count}):"):
            info.find(lines, place, "number")
            with lines.block(f"if row_i8[{place}] > {info.local('limit')}:"):
                info.find(lines, target, live)
                for word in range(info.words):
                    shift = f" + {word}" if word else ""
                    lines.add(f"row_i8[{target}{shift}] = row_i8[{place}{shift}]")
                lines.add(f"{live} += 1")
        lines.add(f"{count} = {live}")


def _read_time(lines: Lines, unit: Unit, body: Body, record: RecordView, info: WindowInfo, time: str) -> None:
    """The time of an event by its own field, with what Python raises for an invalid one."""
    if info.window.by not in info.form.fields:
        return  # found where the field is declared
    value = record.read(info.window.by)
    where = f"{info.form.message.__name__}.{info.window.by}"

    def no_time(slots: bytes, *_: Any) -> Exception:
        return ValueError(f"{where} is {number_at(slots, 0, value.kind.name)}: no seconds since 1970")

    def fault(condition: str, make: Any, array: str = "") -> None:
        unit.sites.append(Site(0, make))
        with lines.block(f"if {condition}:"):
            if array:
                lines.add(f"{array}[{SLOTS_AT}] = {value.code}")
            lines.add(body.halt(Halt.FAULT, len(unit.sites) - 1))

    if value.kind == INT:
        fault(f"not (0 <= {value.code} <= {TIME_NS_MAX // SECOND_NS})", no_time, "result")
        lines.add(f"{time} = {value.code} * {SECOND_NS}")
        return
    product = info.local("product")
    lines.add(f"{product} = {value.code} * {float(SECOND_NS)!r}")
    fault(f"{product} != {product}", lambda *_: int_of_nan())
    fault(f"{product} == INFINITY or {product} == -INFINITY", lambda *_: int_of_infinity())
    fault(f"not (-1.0 < {product} <= {float(TIME_NS_MAX)!r})", no_time, "result_f8")
    lines.add(f"{time} = np.int64({product})")


def _head(info: WindowInfo) -> list[tuple[Value, Column]]:
    return [(Value(INT, (info.local(what),)), Column(what, code, info.offset + offset)) for what, code, offset in _HEAD]


def windows_fed(unit: Unit, message: type[Message]) -> list[WindowInfo]:
    """The windows that an event goes into, in the order of the class."""
    return [info for info in unit.windows.values() if info.form.message is message]
