"""What each shared type means, said once more without dots, stores or deltas: by who had seen what.

A specification is given operations with what their writers had seen, and says what must be read. It knows the order
of causes and nothing of how the types work; `proofs.crdt_laws` holds the types to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from stigmergy.crdt.delta import Edit
from stigmergy.crdt.flags import DisableWinsFlag, EnableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.pncounter import PNCounter


class Operation(NamedTuple):
    """One write: by whom, as which of its changes, what, when by its clock, and what it had seen of everybody."""

    replica: int
    counter: int
    verb: str
    what: tuple[Any, ...]
    now_ns: int
    seen: tuple[int, ...]

    def saw(self, other: Operation) -> bool:
        """Whether its writer knew of the other write."""
        return self.seen[other.replica] >= other.counter


Known = Sequence[Operation]
Written = tuple[Edit, str, tuple[Any, ...]]


class Specification(NamedTuple):
    """A type, how random writes to it are drawn, how it is read, and what must be read of given operations."""

    hint: Any
    draw: Callable[[Random, Any], Written]
    read: Callable[[Any], Any]
    expected: Callable[[Known], Any]


def maximal(known: Known) -> list[Operation]:
    """Those that no other has seen."""
    return [one for one in known if not any(other.saw(one) for other in known if other is not one)]


def survive(known: Known, adds: str, removes: Sequence[str]) -> list[Operation]:
    """Additions that no removal of the same thing has seen. A removal names as much of a thing as it removes."""
    removals = [one for one in known if one.verb in removes]
    return [
        one
        for one in known
        if one.verb == adds
        and not any(one.what[: len(removal.what)] == removal.what and removal.saw(one) for removal in removals)
    ]


def stamps(known: Known) -> dict[tuple[int, int], int]:
    """The stamp of each write to one register: later than its clock says if it had seen a later one."""
    found: dict[tuple[int, int], int] = {}
    for one in sorted(known, key=lambda operation: sum(operation.seen)):
        newest = max((found[other.replica, other.counter] for other in known if one.saw(other)), default=0)
        found[one.replica, one.counter] = max(one.now_ns, newest + 1)
    return found


def last_write(known: Known) -> Any:
    """The value with the highest stamp, then replica, then counter; None without any."""
    times = stamps(known)
    ranked = [(times[one.replica, one.counter], one.replica, one.counter, one.what[-1]) for one in known]
    return max(ranked)[3] if ranked else None


# Counters.


def draw_growth(random: Random, view: GCounter) -> Written:
    amount = random.randrange(4)
    return view.add(amount), "add", (amount,)


def draw_count(random: Random, view: PNCounter) -> Written:
    amount = random.randrange(4)
    if random.random() < 0.5:
        return view.subtract(amount), "add", (-amount,)
    return view.add(amount), "add", (amount,)


def total(known: Known) -> int:
    return sum(one.what[-1] for one in known)


# Registers.


def draw_write(random: Random, view: LWWRegister[int] | MVRegister[int]) -> Written:
    value = random.randrange(5)
    return view.set(value), "set", (value,)


def concurrent_values(known: Known) -> tuple[int, ...]:
    return tuple(sorted({one.what[0] for one in maximal(known)}))


# Flags.


def draw_switch(random: Random, view: EnableWinsFlag | DisableWinsFlag) -> Written:
    if random.random() < 0.5:
        return view.enable(), "enable", ()
    return view.disable(), "disable", ()


def enabled_wins(known: Known) -> bool:
    return bool(survive(known, "enable", ["disable"]))


def disabled_wins(known: Known) -> bool:
    enablings = [one for one in known if one.verb == "enable"]
    overruled = all(any(e.saw(one) for e in enablings) for one in known if one.verb == "disable")
    return bool(enablings) and overruled


# Sets.


def draw_element(random: Random, view: ORSet[int]) -> Written:
    element, choice = random.randrange(3), random.random()
    if choice < 0.5:
        return view.add(element), "add", (element,)
    if choice < 0.95:
        return view.remove(element), "remove", (element,)
    return view.clear(), "clear", ()


def elements(known: Known) -> list[int]:
    return sorted({one.what[0] for one in survive(known, "add", ["remove", "clear"])})


# Maps.


def draw_entry(random: Random, view: ORMap[str, ORSet[int]]) -> Written:
    key = random.choice("ab")
    if random.random() < 0.15:
        return view.remove(key), "remove", (key,)
    edit, verb, what = draw_element(random, view[key])
    return edit, verb, (key, *what)


def entries(known: Known) -> dict[str, list[int]]:
    found: dict[str, dict[int, None]] = {}
    for one in survive(known, "add", ["remove", "clear"]):
        found.setdefault(one.what[0], {})[one.what[1]] = None
    return {key: sorted(below) for key, below in sorted(found.items())}


def draw_tally(random: Random, view: ORMap[str, GCounter]) -> Written:
    key = random.choice("ab")
    if random.random() < 0.2:
        return view.remove(key), "remove", (key,)
    edit, verb, what = draw_growth(random, view[key])
    return edit, verb, (key, *what)


def tallies(known: Known) -> dict[str, int]:
    """Each replica's newest addition counts, with those before it back to a removal that it had seen."""
    totals: dict[str, int] = {}
    by_writer: dict[tuple[str, int], list[Operation]] = {}
    removals = [one for one in known if one.verb == "remove"]
    for one in sorted(known, key=lambda operation: operation.counter):
        if one.verb == "add":
            by_writer.setdefault((one.what[0], one.replica), []).append(one)
    for (key, _), additions in by_writer.items():
        against = [removal for removal in removals if removal.what[0] == key]
        running, before = 0, None
        for one in additions:
            if before is not None and any(one.saw(r) and r.saw(before) for r in against):
                running = 0
            running += one.what[1]
            before = one
        if not any(removal.saw(additions[-1]) for removal in against):
            totals[key] = totals.get(key, 0) + running
    return dict(sorted(totals.items()))


def draw_deep(random: Random, view: ORMap[str, ORMap[str, LWWRegister[int]]]) -> Written:
    key, inner, choice = random.choice("ab"), random.choice("xy"), random.random()
    if choice < 0.1:
        return view.remove(key), "remove", (key,)
    if choice < 0.25:
        return view[key].remove(inner), "remove", (key, inner)
    edit, verb, what = draw_write(random, view[key][inner])
    return edit, verb, (key, inner, *what)


def deep(known: Known) -> dict[str, dict[str, int]]:
    """The writes that are left compete by their stamps; a stamp comes after those that were there when it was made."""
    found: dict[str, dict[str, int]] = {}
    left = survive(known, "set", ["remove"])
    for key in "ab":
        for inner in "xy":
            alive = [one for one in left if one.what[:2] == (key, inner)]
            if alive:
                found.setdefault(key, {})[inner] = _last_of_alive(known, alive, (key, inner))
    return found


def _last_of_alive(known: Known, alive: Known, place: tuple[str, str]) -> int:
    times: dict[tuple[int, int], int] = {}
    writes = sorted((one for one in known if one.what[:2] == place and one.verb == "set"), key=lambda o: sum(o.seen))
    for one in writes:
        before = [other for other in known if one.saw(other)]
        there = [other for other in survive(before, "set", ["remove"]) if other.what[:2] == place]
        newest = max((times[other.replica, other.counter] for other in there), default=0)
        times[one.replica, one.counter] = max(one.now_ns, newest + 1)
    top = [one for one in alive if not any(other.saw(one) for other in alive if other is not one)]
    ranked = [(times[one.replica, one.counter], one.replica, one.counter, one.what[2]) for one in top]
    return int(max(ranked)[3])


def read_flag(view: EnableWinsFlag | DisableWinsFlag) -> bool:
    return bool(view)


def read_deep(view: ORMap[str, ORMap[str, LWWRegister[int]]]) -> dict[str, dict[str, int | None]]:
    return {key: {inner: register.value for inner, register in below.items()} for key, below in view.items()}


SPECIFICATIONS: dict[str, Specification] = {
    "GCounter": Specification(GCounter, draw_growth, int, total),
    "PNCounter": Specification(PNCounter, draw_count, int, total),
    "LWWRegister": Specification(LWWRegister[int], draw_write, lambda view: view.value, last_write),
    "MVRegister": Specification(MVRegister[int], draw_write, lambda view: view.values, concurrent_values),
    "EnableWinsFlag": Specification(EnableWinsFlag, draw_switch, read_flag, enabled_wins),
    "DisableWinsFlag": Specification(DisableWinsFlag, draw_switch, read_flag, disabled_wins),
    "ORSet": Specification(ORSet[int], draw_element, list, elements),
    "ORMap of sets": Specification(
        ORMap[str, ORSet[int]],
        draw_entry,
        lambda view: {key: list(below) for key, below in view.items()},
        entries,
    ),
    "ORMap of counters": Specification(
        ORMap[str, GCounter],
        draw_tally,
        lambda view: {key: below.value for key, below in view.items()},
        tallies,
    ),
    "ORMap of ORMap of registers": Specification(ORMap[str, ORMap[str, LWWRegister[int]]], draw_deep, read_deep, deep),
}
