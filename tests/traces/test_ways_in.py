"""Each way in takes the caller's context: the client over HTTP, gRPC and a bus, an embedded fleet. What goes through a
restart and a command that is sent on stay in their trace."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel

import stigmergy as st
from stigmergy.app.fleet import inspect_journal
from stigmergy.control.live import Live
from stigmergy.serve.embedded import ServedFleet
from stigmergy.shard.tracing import TraceContext
from stigmergy.traces.search import find_spans
from stigmergy.traces.spans import Span
from tests.cli.in_process import Here
from tests.clients.rig import Drive, Seen, client, warehouse_served
from tests.compiled.agents import Relay, Sighted
from tests.traces.jobs import Dispatch, Drone, Fly, Go, Tower, make_fleet
from tests.traces.test_two_nodes import wait_for

FIRST = 0x4BF92F3577B34DA6A3CE929D0E0E4700


@contextlib.contextmanager
def in_span(number: int, *, sampled: bool = True) -> Iterator[str]:
    """A span of the program, and the id of its trace."""
    context = otel.SpanContext(FIRST + number, 7, is_remote=False, trace_flags=otel.TraceFlags(int(sampled)))
    with otel.use_span(otel.NonRecordingSpan(context)):
        yield f"{FIRST + number:032x}"


def found(live: Live, *jobs: str) -> list[Span]:
    return [span for span in find_spans(live.host.journal, jobs, 100) if span is not None]


def names(live: Live, job: str) -> list[str]:
    return [span.name for span in found(live, job) if span.name != "commit"]


@contextlib.asynccontextmanager
async def node(path: Path, name: str, bus: str | None = None, **more: Any) -> AsyncIterator[tuple[Any, Live]]:
    running = make_fleet(more.pop("settings", None)).running(
        journal=f"sqlite:{path / name}.db", bus=bus, node=name, **more
    )
    async with running as live:
        yield running, live


async def test_the_client_passes_on_the_span_of_its_program(tmp_path: Path) -> None:
    bus = f"memory:{tmp_path.name}"
    async with (
        node(tmp_path, "a", bus) as (running, live),
        ServedFleet(running, live) as served,
        st.connect(served.url) as http,
        st.connect(bus, fleet="jobs") as over_bus,
    ):
        senders: list[Any] = [http, over_bus, live]
        for number, sender in enumerate(senders):
            with in_span(number) as trace_id:
                command = Dispatch(drone="Drone/d", job=f"J{number}")
                assert await sender.send("Tower/t", command)
                await sender.observe("Drone/d", Go(job=f"again-{number}"))
            await wait_for(lambda trace_id=trace_id: names(live, trace_id).count("Drone Done.Fly") == 2)
            roots = [span for span in found(live, trace_id) if span.parent == f"{7:016x}"]
            assert [span.name for span in roots] == ["Tower Dispatch", "Drone Go"], number
        with in_span(9, sampled=False) as trace_id:
            assert await live.send("Tower/t", Dispatch(drone="Drone/d", job="J9"))
        assert found(live, trace_id) == [], "its program does not record it"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_the_apis_take_it_as_headers_and_metadata(tmp_path: Path, scheme: str) -> None:
    url = f"sqlite:{tmp_path / 'warehouse.db'}"
    async with warehouse_served(tmp_path, url) as urls, client(urls, scheme) as far:
        with in_span(1) as trace_id:
            assert await far.send("Cart/c1", Drive(to="dock"), command_id="by-api")
            await far.observe("Cart/c1", Seen(by="gate"))
    spans = await in_journal(url, "by-api")
    assert [(span.name, span.trace_id) for span in spans if span.parent == f"{7:016x}"] == [
        ("Cart Drive", trace_id),
        ("Cart Seen", trace_id),
    ]


async def in_journal(url: str, job: str) -> list[Span]:
    journal = inspect_journal(url)
    try:
        return [span for span in find_spans(journal, [job], 10) if span is not None]
    finally:
        await journal.close()


async def test_a_command_that_is_sent_on_stays_in_its_trace(tmp_path: Path, bus_url: str) -> None:
    async with (
        node(tmp_path, "north", bus_url, agents=["Drone/*"]) as (_, north),
        node(tmp_path, "south", bus_url, agents=["Tower/t"]) as (_, south),
    ):
        await wait_for(lambda: north.host.intake.is_elsewhere("Tower/t"))
        context = TraceContext(bytes(range(16)), bytes(range(8)))
        answer = await north.send("Tower/t", Dispatch(drone="Drone/d", job="J1"), command_id="sent-on", trace=context)
        assert isinstance(answer, st.Accepted)
        trace_id = context.trace_id.hex()
        await wait_for(lambda: "send on Dispatch" in names(north, trace_id))
        await wait_for(lambda: "Tower Flown" in names(south, trace_id))
        at_north = {span.name: span for span in found(north, trace_id)}
        at_south = {span.name: span for span in found(south, trace_id)}
        assert at_south["Tower Dispatch"].parent == at_north["send on Dispatch"].span_id
        assert {span.trace_id for span in found(north, "sent-on")} == {trace_id}, "by the command's id at both nodes"
        assert {span.trace_id for span in found(south, "sent-on")} == {trace_id}


async def test_what_is_owed_stays_in_its_trace_through_a_restart(tmp_path: Path) -> None:
    settings = st.Settings(snapshots=st.Snapshots(every_events=1, tail_ratio=0.0, share_max=1.0))
    begun, context = asyncio.Event(), TraceContext(b"r" * 16, b"p" * 8)

    def fleet(hangs: bool) -> st.Fleet:
        made = st.Fleet("jobs", agents=[Tower, Drone], settings=settings)

        @made.actuator(Fly)
        async def fly(order: st.Order[Fly]) -> None:
            begun.set()
            if hangs:
                await asyncio.Event().wait()

        return made

    where: dict[str, Any] = {"journal": f"sqlite:{tmp_path / 'jobs.db'}", "key": tmp_path / "key"}
    async with fleet(True).running(**where) as live:
        await live.send("Tower/t", Dispatch(drone="Drone/d", job="J1"), trace=context)
        await begun.wait()
        await wait_for(lambda: live.host.housekeeper.counters.snapshots > 0)
        await live.host.kill()
    async with fleet(False).running(**where) as live:
        await wait_for(lambda: live.query("Tower/t").flown == ("J1",))
        await wait_for(lambda: "Tower Flown" in names(live, context.trace_id.hex()))
        spans = {span.name: span for span in found(live, context.trace_id.hex())}
    assert spans["Drone Done.Fly"].parent == spans["action Fly"].span_id
    assert spans["action Fly"].parent == spans["Drone Go"].span_id
    verified = await asyncio.to_thread(Here(tmp_path).cli, "log", "verify", "--journal", "jobs.db")
    assert verified.returncode == 0
    again = await in_journal(where["journal"], "Drone/d")
    assert {span.name: span for span in again if span.name != "commit"} == {
        name: span for name, span in spans.items() if name != "commit"
    }


async def test_a_command_is_found_whose_id_looks_like_that_of_a_trace(tmp_path: Path) -> None:
    """The page makes such ids: 32 hexadecimal digits."""
    command_id = "0123456789abcdef" * 2
    async with node(tmp_path, "a") as (_, live):
        with in_span(1) as trace_id:
            await live.send("Tower/t", Dispatch(drone="Drone/d", job="J1"), command_id=command_id)
        await wait_for(lambda: "Tower Flown" in names(live, trace_id))
        assert {span.trace_id for span in found(live, command_id)} == {trace_id}
        both = found(live, trace_id, command_id)
        assert len({span.span_id for span in both}) == len(both), "each once, named by its trace and by its command"
    shown = await asyncio.to_thread(Here(tmp_path).cli, "trace", command_id, "a.db")
    assert (shown.returncode, trace_id in shown.stdout) == (0, True)
    unknown = await asyncio.to_thread(Here(tmp_path).cli, "trace", "f" * 32, "a.db")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "not sampled, or is older than what is kept: the log begins at 20" in unknown.stderr


async def test_refused_and_failed_commands_are_always_traced(tmp_path: Path) -> None:
    settings = st.Settings(traces=st.TraceSettings(rules={"Go": 0.5}))
    async with node(tmp_path, "a", settings=settings) as (_, live):
        for number, job in enumerate(("never", "broken", "fine")):
            await live.send("Tower/t", Dispatch(drone="Drone/d", job=job), command_id=f"id-{number}")
        refused, failed = found(live, "id-0")[0], found(live, "id-1")[0]
        assert refused.error == "no such job"
        assert failed.error.startswith("the handler failed: RuntimeError: over its own feet")
        assert found(live, "id-2") == []


async def test_compiled_agents_take_part(tmp_path: Path) -> None:
    """Of their inputs one by one: which of their records an input has made is not looked at."""
    relays = st.Fleet("relays", agents=[Relay], compiled=True)
    async with relays.running(journal=f"sqlite:{tmp_path / 'relays.db'}") as live:
        with in_span(1) as trace_id:
            await live.observe("Relay/a", Sighted(distance_m=500.0, bearing=50))
        await wait_for(lambda: "publish Sighted" in names(live, trace_id))
        seen, published = (span for span in found(live, trace_id) if span.name != "commit")
    assert (seen.name, seen.attributes["stigmergy.agent"]) == ("Relay Sighted", "Relay/a")
    assert "Sighted" not in str(seen.attributes["stigmergy.events"]), "its own records are not looked at"
    assert published.parent == seen.span_id
