"""Orders that are bound to a claim: carried out while it is held, dropped and told afterwards."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from msgspec import structs

from rigs.ledger import LedgerFaults, SimLedger
from stigmergy import (
    Action,
    ActionDone,
    ActionFailed,
    Agent,
    Claim,
    DeviceRefused,
    Effects,
    Event,
    Fence,
    Fleet,
    Granted,
    Order,
    OrderClaim,
    Ordered,
    SafeAction,
    StaleOrder,
    WhenStale,
    Work,
    WorkFailed,
    evolve,
    ordered,
    react,
)
from stigmergy.agents.effects import LAPSED
from stigmergy.base.errors import DefinitionError
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.network.replication import Replication
from stigmergy.node.host import Host
from stigmergy.sim.node import NodeService, SimNode
from stigmergy.sim.run import Run
from stigmergy.testing import given

DOCK = "dock-1"


class Came(Event):
    for_s: float = 2.0
    prepares_s: float = 0.0
    gives_back: bool = False
    renew: bool = False


class Prepare(Action):
    """Keeps the lane of its agent busy for so long."""

    seconds: float


class Plug(Action):
    dock: str


class Weigh(Work):
    dock: str


class Weighed(Event):
    dock: str


class Arm(Action):
    """Shows the device the token of a new grant, before there is anything to do."""

    dock: str


class Cart(Agent):
    dock: Ordered[Claim] = ordered(of=DOCK)
    prepares_s: float = 0.0
    gives_back: bool = False
    heard: tuple[str, ...] = ()

    @evolve
    def come(self, event: Came) -> None:
        self.prepares_s, self.gives_back = event.prepares_s, event.gives_back

    @react
    def ask(self, event: Came) -> Effects:
        yield self.dock.claim(for_s=event.for_s, wait_s=60.0, renew=event.renew)

    @react
    def granted(self, verdict: Granted) -> Effects:
        yield Arm(dock=verdict.resource, valid_while=self.dock)
        if self.prepares_s:
            yield Prepare(seconds=self.prepares_s)
        yield Plug(dock=verdict.resource, valid_while=self.dock)
        yield Weigh(dock=verdict.resource, valid_while=self.dock)
        if self.gives_back:
            yield self.dock.release()

    @evolve
    def hear(self, event: ActionDone | ActionFailed | WorkFailed | Weighed) -> None:
        match event:
            case ActionDone(action=action):
                said = f"{action} done"
            case ActionFailed(action=what, reason=reason) | WorkFailed(work=what, reason=reason):
                said = f"{what} failed: {reason}"
            case _:
                said = "weighed"
        self.heard = (*self.heard, said)


class Machine:
    """A node with a cart on it, and what its device was told."""

    def __init__(self, world: Run, store: MemoryLedgerStore | None, name: str) -> None:
        self.world = world
        self.cart = f"Cart/{name}"
        self._store = store
        self.orders: list[Order[Plug]] = []
        self.armed: list[int] = []
        self.fails = 0
        """So many tries of Plug raise, each after a second."""
        self.hangs = False
        self.node = SimNode(world, self._fleet, name=name, in_memory=True, parts=self._parts)

    def _fleet(self, _node: SimNode) -> Fleet:
        fleet = Fleet("carts", agents=[Cart])

        @fleet.actuator(Prepare)
        async def prepare(order: Order[Prepare]) -> None:
            assert order.claim is None
            await asyncio.sleep(order.effect.seconds)

        @fleet.actuator(Arm)
        def arm(order: Order[Arm]) -> None:
            assert order.claim is not None
            self.armed.append(order.claim.fencing_token)

        @fleet.actuator(Plug, tries=3, within_s=100.0)
        async def plug(order: Order[Plug]) -> None:
            self.orders.append(order)
            if self.hangs:
                await asyncio.sleep(1000.0)
            if self.fails:
                self.fails -= 1
                await asyncio.sleep(1.0)
                raise OSError("no contact")

        @fleet.worker(Weigh)
        async def weigh(order: Order[Weigh]) -> Weighed:
            if self.hangs:
                await asyncio.sleep(1000)
            return Weighed(dock=order.effect.dock)

        return fleet

    def _parts(self, node: SimNode, host: Host) -> Sequence[NodeService]:
        if self._store is None:
            return ()
        chance = random.Random(f"{self.world.seed}/{node.name}/{node.lives}")
        self.ledger = SimLedger(self._store, chance, LedgerFaults(delay_s_max=0.002))
        return (Replication(host, node.signer, node.entropy, ledger=self.ledger),)

    def observe(self, event: Event) -> None:
        assert self.node.live is not None
        taken = self.node.live.host.intake.observe(self.cart, event)
        taken.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def heard(self) -> list[str]:
        cart = None if self.node.live is None else self.node.live.query(self.cart)
        return [said for said in cart.heard if not said.startswith("Arm")] if isinstance(cart, Cart) else []

    async def wait(self, condition: Callable[[], object]) -> None:
        deadline_s = self.world.loop.time() + 60.0
        while not condition():
            assert self.world.loop.time() < deadline_s, f"{self.cart} heard {self.heard}"
            await asyncio.sleep(0.002)

    async def wait_heard(self, count: int) -> list[str]:
        await self.wait(lambda: len(self.heard) >= count)
        return self.heard

    @property
    def lapsed(self) -> int:
        assert self.node.live is not None
        return self.node.live.host.effector.counters.lapsed


def play(scene: Callable[[Machine, Machine], Awaitable[None]], *, ledger: bool = True) -> None:
    world = Run(1)
    store = MemoryLedgerStore("carts") if ledger else None
    one, other = Machine(world, store, "one"), Machine(world, store, "other")

    async def main() -> None:
        await one.node.start()
        await other.node.start()
        await scene(one, other)
        for machine in (one, other):
            if machine.node.live is not None:
                await machine.node.stop()

    world.run(main())


def lapsed(what: str, token: int = 1) -> str:
    return f"{what} failed: the claim on {DOCK} under fencing token {token} {LAPSED}"


def test_an_order_carries_its_claim_while_that_is_held() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Came(for_s=5.0))
        assert sorted(await one.wait_heard(2)) == ["Plug done", "weighed"]
        claim = one.orders[0].claim
        assert claim is not None
        assert (claim.field, claim.resource, claim.fencing_token) == ("dock", DOCK, 1)
        assert 4.5 < claim.left_s <= 5.0
        assert claim.until_ns == pytest.approx(one.node.clock.monotonic_ns() + claim.left_s * 1e9, abs=5e7)
        assert one.orders[0].token != claim.fencing_token
        held = [claim.held]
        await asyncio.sleep(6.0)
        assert [*held, claim.held] == [True, False]
        assert (one.armed, one.lapsed) == ([1], 0)

    play(scene)


def test_an_order_that_waited_until_the_lease_was_over_is_dropped_and_told() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Came(for_s=2.0, prepares_s=3.0))
        assert sorted(await one.wait_heard(3)) == [lapsed("Plug"), "Prepare done", "weighed"]
        assert (one.orders, one.lapsed) == ([], 1)

    play(scene)


def test_a_renewed_lease_carries_a_late_order() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Came(for_s=2.0, prepares_s=10.0, renew=True))
        await one.wait_heard(3)
        assert [order.effect.dock for order in one.orders] == [DOCK]

    play(scene)


def test_no_try_is_made_after_the_lease() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.fails = 3
        one.observe(Came(for_s=1.5))
        assert lapsed("Plug") in await one.wait_heard(2)
        assert [order.attempt for order in one.orders] == [1, 2]

    play(scene)


def test_what_is_given_back_first_is_not_acted_on() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Came(for_s=20.0, prepares_s=1.0, gives_back=True))
        assert lapsed("Plug") in await one.wait_heard(3)
        assert one.orders == []

    play(scene)


def test_after_a_restart_nothing_is_held_and_what_was_owed_is_dropped() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.hangs = True
        one.observe(Came(for_s=60.0))
        await one.wait(lambda: one.orders)
        await one.node.kill()
        one.hangs = False
        await one.node.start()
        assert sorted(await one.wait_heard(2)) == [lapsed("Plug"), lapsed("Weigh")]
        assert one.lapsed == 2
        assert len(one.orders) == 1

    play(scene)


def test_without_a_ledger_there_is_no_grant_to_act_on() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Came())
        await asyncio.sleep(1.0)
        assert (one.orders, one.armed, one.heard) == ([], [], [])

    play(scene, ledger=False)


def test_a_grant_that_is_shown_at_once_fences_the_former_holder_out() -> None:
    """The former holder is under way when its lease ends. The device refuses it, although the new holder has not sent
    it any order yet, because it was shown the new token."""
    fence = Fence(of=DOCK)
    refused: list[str] = []

    async def scene(one: Machine, other: Machine) -> None:
        one.hangs = True
        one.observe(Came(for_s=2.0))
        await one.wait(lambda: one.orders)
        other.observe(Came(for_s=5.0, prepares_s=30.0))
        await other.wait(lambda: other.armed)
        late = one.orders[0]
        assert other.orders == []
        fence.admit(late)  # nobody has told the device of the newer grant: only the holder's own clock keeps it away
        assert late.claim is not None
        assert not late.claim.held
        shown = Order("Cart/other", Arm(dock=DOCK), "k", 1, 1, claim=_claim_of(late, other.armed[0]))
        fence.admit(shown)
        with pytest.raises(StaleOrder, match="a later holder has been here") as caught:
            fence.admit(late)
        refused.append(str(caught.value))

    play(scene)
    assert refused


def _claim_of(order: Order[Plug], fencing_token: int) -> OrderClaim:
    assert order.claim is not None
    return structs.replace(order.claim, fencing_token=fencing_token)


def test_a_fence_of_a_resource_takes_only_orders_that_are_bound_to_it() -> None:
    fence = Fence(of="dock-2")
    with pytest.raises(DeviceRefused, match="bound to no claim, and this fence is for dock-2"):
        fence.admit(Order("Cart/a", Plug(dock="dock-2"), "k", 7, 1))
    assert fence.highest("dock-2") is None


def test_what_makes_safe_is_bound_to_nothing() -> None:
    bound = Plug(dock=DOCK, valid_while=Claim(field="dock"))
    with pytest.raises(DefinitionError, match="what makes safe needs no claim; take valid_while out"):
        WhenStale(Came, after_s=5, then=bound)
    with pytest.raises(DefinitionError, match="take valid_while out"):
        SafeAction(then=bound)


def test_the_name_is_taken() -> None:
    with pytest.raises(DefinitionError, match=r"Bad\.valid_while: every action has this field already"):

        class Bad(Action):
            valid_while: int  # type: ignore[assignment]


def test_it_is_seen_in_tests_of_agents() -> None:
    there = given(Cart).when(Came())
    there.when(Granted(claim="dock", resource=DOCK, token=9, for_s=5.0))
    dock = there.agent.dock
    assert dock.fencing_token == 9
    there.then(
        Granted(claim="dock", resource=DOCK, token=9, for_s=5.0),
        Arm(dock=DOCK, valid_while=dock),
        Plug(dock=DOCK, valid_while=dock),
        Weigh(dock=DOCK, valid_while=dock),
    )
    with pytest.raises(AssertionError):
        there.then(Arm(dock=DOCK), Plug(dock=DOCK), Weigh(dock=DOCK))


def test_something_else_than_a_field_is_refused_where_it_is_yielded() -> None:
    class Rash(Agent):
        @react
        def come(self, event: Came) -> Effects:
            yield Plug(dock=DOCK, valid_while=Claim())

    given(Rash).when(Came()).failed("give an ordered field of the agent, such as self.dock")


STOPPED = """
import asyncio, sys
from stigmergy import *

class Came(Event):
    pass

class Prepare(Action):
    pass

class Plug(Action):
    dock: str

class Cart(Agent):
    dock: Ordered[Claim] = ordered(of="dock-1")

    @react
    def ask(self, event: Came) -> Effects:
        yield self.dock.claim(for_s=3.0)

    @react
    def granted(self, verdict: Granted) -> Effects:
        yield Prepare()
        yield Plug(dock=verdict.resource, valid_while=self.dock)

    @react
    def told(self, event: ActionFailed) -> Effects:
        say("failed", event.reason)
        return ()

def say(*words):
    print(*words, flush=True)

fleet = Fleet("carts", agents=[Cart])

@fleet.actuator(Prepare)
async def prepare(order: Order[Prepare]) -> None:
    say("prepares")
    await asyncio.sleep(1.0)

@fleet.actuator(Plug)
async def plug(order: Order[Plug]) -> None:
    say("plugged")

async def main():
    folder = sys.argv[1]
    async with fleet.running(journal=f"sqlite:{folder}/fleet.db", ledger=f"sqlite:{folder}/ledger.db") as live:
        await live.observe("Cart/a", Came())
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bound", [True, False])
def test_a_process_that_was_stopped_beyond_its_lease_drops_what_is_bound(tmp_path: Path, bound: bool) -> None:
    """A real process, stopped between the grant and the order. What is bound to the claim is dropped when it goes on;
    what is not is carried out, long after the lease."""
    program = STOPPED if bound else STOPPED.replace(", valid_while=self.dock", "")
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "prepares\n"
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(4.0)
            os.kill(child.pid, signal.SIGCONT)
            said = child.stdout.readline()
        finally:
            child.kill()
    if bound:
        assert said.startswith("failed the claim on dock-1 under fencing token 1 is not held any more")
    else:
        assert said == "plugged\n"
