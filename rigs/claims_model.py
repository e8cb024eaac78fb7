"""A few claimants of one resource, or of a pool of them, on one ledger: everything that can go wrong, in every order.

The fold, the leases and the claimant's side are the code that ships (`core/claims`). The model adds what is around
them: entries on their way that land late, twice or never; answers that are lost; readers that lag; crashes, after which
an entry of the dead life may still land; and clocks that run as fast and as slow as they may. Time passes in ticks,
without end, and nobody has to notice. Whoever *believes* that it holds does so by its own clock.

Every moment in a state is relative to now, and what lies too far back to matter is all the same: so the states are
finite, although time is not, and only the number of entries is bounded.

What must never be: somebody believes that it holds, and the ledger says that somebody else may. And of a pool:
somebody has two at once, waits while one is free, or has other places in two lines than its neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

from msgspec import structs

from stigmergy.claims import acquisition as acquisitions
from stigmergy.claims.acquisition import Acquisition, Advance
from stigmergy.claims.entries import Expire, Move, Written
from stigmergy.claims.rules import FoldStep, apply
from stigmergy.claims.state import Claims, expiry_ns

CELL = "cell"
POOL = (CELL, "cell-2", "cell-3")
"""A model with a pool has the first of these."""
MILLION = 1_000_000
DRIFT_PPM = 200_000
"""Far more than real clocks have, so that a few ticks show what drift does."""
TICK_NS = 312_500_000
"""A slow clock counts 250 ms in it and a fast one 375: a lease of 1 s is 4 ticks for the slowest holder, and its expiry
4 ticks for the fastest observer. So nothing is to spare between them."""
FOR_MS = 1_000
OFFER_MS = 500
PATIENCE_MS = 1_000

NOW = 0
"""Every clock, at any moment."""


class Claimant(NamedTuple):
    """One node with one claim."""

    tick_ns: int
    """What its clock counts while a tick passes."""
    life: int = 1
    number: int = 1
    """Of its next entry."""
    behind: bool = False
    """Whether there is more to read."""
    acquisition: Acquisition | None = None
    outbox: tuple[Written, ...] = ()
    """What it sends, one after the other."""
    in_doubt: bool = False
    """Whether the first of them may be in the log already."""
    watched: tuple[int, ...] = ()
    """Of each resource the beginning of the lease or offer that it watches, once it has seen it; 0 for none."""
    due_ns: tuple[int, ...] = ()
    """When that is over, by its own clock."""
    asks: int = 0
    """How often it may still ask."""
    crashes: int = 0


class World(NamedTuple):
    """Everything at one moment."""

    claims: Claims
    """What the whole log comes to."""
    entries: int
    claimants: tuple[Claimant, ...]
    ghosts: tuple[Written, ...] = ()
    """Entries of dead lives that may still land."""
    repeats: int = 0
    """How many more entries may land twice."""


class Faults(NamedTuple):
    """How much of what may happen."""

    claimants: int = 2
    asks: int = 1
    crashes: int = 0
    repeats: int = 0
    waits: bool = False
    renew: bool = False
    releases: bool = False
    entries: int = 6
    short_ms: int = 0
    """If given, a holder may ask once more, for this shorter time."""
    refusals: bool = False
    """Whether the ledger may be out of reach, so that something is sent again later."""
    pool: int = 1
    """How many resources there are; of more than one a claimant wants any."""
    all_clocks: bool = False
    """Whether every clock may be slow and fast; else the first is slow and the others are fast, which is the worst."""


class ClaimsModel:
    """The model. Its parts can be replaced by wrong ones, which the search must find."""

    def __init__(
        self,
        faults: Faults,
        *,
        rules: Callable[[Claims, int, Written], FoldStep] = apply,
        expiry: Callable[[int, int], int] | None = None,
        hear: Callable[..., Advance] = acquisitions.heard,
        ask: Callable[..., Advance] = acquisitions.ask,
    ) -> None:
        self._faults = faults
        self._cells = POOL[: faults.pool]
        self._none = Claimant(0, watched=(0,) * faults.pool, due_ns=(NOW,) * faults.pool)
        self._rules = rules
        self._expiry = expiry or (lambda seen_ns, for_ms: expiry_ns(seen_ns, for_ms, DRIFT_PPM, margin_ms=0))
        self._hear = hear
        self._ask = ask

    def initial(self) -> Iterable[World]:
        """Clocks as slow and as fast as they may be."""
        slow, fast = (TICK_NS * (MILLION + drift) // MILLION for drift in (-DRIFT_PPM, DRIFT_PPM))
        worst = (slow, *(fast for _ in range(self._faults.claimants - 1)))
        every = product((slow, fast), repeat=self._faults.claimants)
        for ticks in every if self._faults.all_clocks else (worst,):
            first = self._none._replace(asks=self._faults.asks, crashes=self._faults.crashes)
            claimants = (first._replace(tick_ns=tick) for tick in ticks)
            yield World(Claims(), 0, tuple(claimants), repeats=self._faults.repeats)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """What may happen next."""
        yield "time passes", world._replace(claimants=tuple(self._later(one) for one in world.claimants))
        for index, claimant in enumerate(world.claimants):
            name = "ABC"[index]
            for what, changed in self._alone(index, claimant, world):
                yield f"{name}: {what}", _with(world, index, changed)
            for what, changed, landed in self._sends(claimant, world):
                after = self._landed(_with(world, index, changed), landed)
                yield f"{name}: {what}", after._replace(repeats=world.repeats - changed.in_doubt)
            if claimant.crashes:
                reborn = self._none._replace(tick_ns=claimant.tick_ns, life=claimant.life + 1, asks=claimant.asks)
                reborn = reborn._replace(behind=world.entries > 0, crashes=claimant.crashes - 1)
                after = _with(world, index, reborn)
                ghosts = (*world.ghosts, *claimant.outbox[:1])
                yield f"{name}: crashes, and begins a new life", after._replace(ghosts=ghosts)
        if world.entries < self._faults.entries:
            for number, ghost in enumerate(world.ghosts):
                left = world.ghosts[:number] + world.ghosts[number + 1 :]
                what = f"{type(ghost.move).__name__} of a dead life lands"
                yield what, self._landed(world._replace(ghosts=left), ghost)

    def wrong(self, world: World) -> str | None:
        """Two who believe, or one who believes what the ledger has given away."""
        believers = [
            (index, claimant.acquisition.resource, claimant.acquisition.held)
            for index, claimant in enumerate(world.claimants)
            if claimant.acquisition is not None
            and claimant.acquisition.held is not None
            and claimant.acquisition.believes(NOW)
        ]
        if len({cell for _, cell, _ in believers}) < len(believers):
            return "two believe that they hold it"
        for index, cell, held in believers:
            grant = world.claims.holds(cell, _id(index))
            if grant is None or grant.token != held.token:
                return f"{'ABC'[index]} believes that it holds it under {held.token}, the ledger says otherwise"
        return self._wrong_lines(world.claims) if self._faults.pool > 1 else None

    def _wrong_lines(self, claims: Claims) -> str | None:
        """Of a pool: who has two, who waits although one is free, and lines that disagree on who is first."""
        lines = [[waiter.claimant for waiter in claims.resource(cell).queue] for cell in self._cells]
        for index in range(self._faults.claimants):
            name, claimant = "ABC"[index], _id(index)
            has = [cell for cell in self._cells if claims.holds(cell, claimant) or claims.offered(cell, claimant)]
            waits = [cell for cell, line in zip(self._cells, lines, strict=True) if claimant in line]
            if len(has) > 1:
                return f"{name} has {' and '.join(has)}"
            if has and waits:
                return f"{name} has {has[0]}, and waits for {waits[0]}"
            if waits and (waits != list(self._cells) or claims.pools.get(claimant) != self._cells):
                return f"{name} has lost its place in a line, or waits although one is free"
        if any(line != lines[0] for line in lines):
            return "the lines of a pool disagree on who is first"
        return None

    def describe(self, world: World) -> str:
        """A state for people."""
        lines = [f"ledger, {world.entries} entries"]
        for cell in self._cells:
            known = world.claims.resource(cell)
            lines.append(f"{cell}: {known.grant or known.offer or 'free'}, {len(known.queue)} wait")
        for name, claimant in zip("ABC", world.claimants, strict=False):
            acquisition = claimant.acquisition
            state = "idle" if acquisition is None else "holds" if acquisition.believes(NOW) else "asks"
            left = (
                f", {acquisition.held.end_ns / 1e9:.2f} s left"
                if acquisition is not None and acquisition.held is not None
                else ""
            )
            on_its_way = ", ".join(type(written.move).__name__ for written in claimant.outbox)
            lines.append(f"{name} {state}{left}{', has not read all' * claimant.behind}; sends [{on_its_way}]")
        return "\n".join(lines)

    def _alone(self, index: int, claimant: Claimant, world: World) -> Iterator[tuple[str, Claimant]]:
        """What one claimant may do next by itself."""
        acquisition = claimant.acquisition
        if acquisition is not None and acquisition.next_ns <= NOW:
            # It looks at its clock before it does anything else, whenever it does something.
            yield (
                "looks at its clock",
                self._after(index, claimant, acquisitions.tick(acquisition, NOW, claimant.number)),
            )
            return
        if acquisition is None and claimant.asks:
            yield "asks", self._asks(index, claimant, FOR_MS)
        if acquisition is not None and acquisition.held is not None and self._faults.short_ms and claimant.asks:
            yield "asks for less", self._asks(index, claimant, self._faults.short_ms)
        if acquisition is not None and acquisition.held is not None and self._faults.releases:
            yield "releases", self._after(index, claimant, acquisitions.release(acquisition, acquisition.held.token))
        if claimant.behind:
            yield "reads on", self._reads(index, claimant, world.claims)
        for number, cell in enumerate(self._cells):
            began = claimant.watched[number]
            if began and not claimant.outbox and claimant.due_ns[number] <= NOW:
                turn = Advance(acquisition, Expire(cell, began))
                yield f"says that {began} is over", _watching(self._after(index, claimant, turn), number, 0, NOW)

    def _asks(self, index: int, claimant: Claimant, for_ms: int) -> Claimant:
        until_ns = NOW + PATIENCE_MS * MILLION
        wanted = Acquisition(_id(index), CELL, for_ms, self._faults.renew, self._faults.waits, until_ns)
        if self._faults.pool > 1:
            wanted = structs.replace(wanted, resource="", pool=self._cells)
        turn = self._ask(claimant.acquisition, wanted, NOW, claimant.number)
        return self._after(index, claimant, turn)._replace(asks=claimant.asks - 1)

    def _sends(self, claimant: Claimant, world: World) -> Iterator[tuple[str, Claimant, Written | None]]:
        """What may become of the first entry that it sends."""
        if not claimant.outbox:
            return
        first, rest = claimant.outbox[0], claimant.outbox[1:]
        if world.entries < self._faults.entries:
            yield f"its {type(first.move).__name__} lands", claimant._replace(outbox=rest, in_doubt=False), first
            if world.repeats:
                lost = f"its {type(first.move).__name__} lands, the answer is lost"
                yield lost, claimant._replace(in_doubt=True), first
        if self._faults.refusals and not claimant.in_doubt and claimant.acquisition is not None:
            numbers = range(first.sequence, first.sequence + 1)
            again = claimant._replace(acquisition=acquisitions.resent(claimant.acquisition, numbers, NOW))
            if again != claimant:
                yield "is refused, and sends again", again, None

    def _landed(self, world: World, written: Written | None) -> World:
        if written is None:
            return world
        step = self._rules(world.claims, world.entries + 1, written)
        behind = tuple(claimant._replace(behind=True) for claimant in world.claimants)
        return world._replace(claims=step.claims, entries=world.entries + 1, claimants=behind)

    def _reads(self, index: int, claimant: Claimant, claims: Claims) -> Claimant:
        claimant = claimant._replace(behind=False)
        for number, cell in enumerate(self._cells):
            known, watched = claims.resource(cell), claimant.watched[number]
            if known.grant is not None and known.grant.began != watched:
                due_ns = self._expiry(NOW, known.grant.for_ms)
                claimant = _watching(claimant, number, known.grant.began, due_ns)
            elif known.offer is not None and known.offer.position != watched:
                claimant = _watching(claimant, number, known.offer.position, self._expiry(NOW, OFFER_MS))
            elif known.grant is None and known.offer is None:
                claimant = _watching(claimant, number, 0, NOW)
        if claimant.acquisition is None:
            return claimant
        turn = self._hear(claimant.acquisition, claims, _id(index), claimant.life, NOW, claimant.number)
        return self._after(index, claimant, turn)

    def _after(self, index: int, claimant: Claimant, turn: Advance) -> Claimant:
        claimant = claimant._replace(acquisition=turn.acquisition)
        if turn.move is None:
            return claimant
        written = _written(index, claimant.life, claimant.number, turn.move)
        return claimant._replace(outbox=(*claimant.outbox, written), number=claimant.number + 1)

    def _later(self, claimant: Claimant) -> Claimant:
        """The same, a tick later. What is over stays over, however long ago."""
        acquisition, tick_ns = claimant.acquisition, claimant.tick_ns
        claimant = claimant._replace(due_ns=tuple(max(due_ns - tick_ns, NOW) for due_ns in claimant.due_ns))
        if acquisition is None:
            return claimant
        sent, held = acquisition.sent, acquisition.held
        if sent is not None:
            sent = structs.replace(sent, sent_ns=max(sent.sent_ns - tick_ns, -sent.move.for_ms * MILLION))
        if held is not None:
            sent_ns = max(held.sent_ns - tick_ns, -held.for_ms * MILLION)
            held = structs.replace(held, sent_ns=sent_ns, end_ns=max(held.end_ns - tick_ns, NOW))
        until_ns = max(acquisition.until_ns - tick_ns, NOW) if acquisition.asking else NOW
        return claimant._replace(acquisition=structs.replace(acquisition, sent=sent, held=held, until_ns=until_ns))


def _watching(claimant: Claimant, number: int, began: int, due_ns: int) -> Claimant:
    watched, dues = list(claimant.watched), list(claimant.due_ns)
    watched[number], dues[number] = began, due_ns
    return claimant._replace(watched=tuple(watched), due_ns=tuple(dues))


def _with(world: World, index: int, claimant: Claimant) -> World:
    return world._replace(claimants=(*world.claimants[:index], claimant, *world.claimants[index + 1 :]))


def _id(index: int) -> bytes:
    return b"ABC"[index : index + 1]


def _written(index: int, life: int, number: int, move: Move) -> Written:
    return Written(b"key", _id(index), _id(index), life, number, move)
