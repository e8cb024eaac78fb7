"""Traces between two simulated nodes: in virtual time, and the same in every run of a seed."""

import asyncio

from stigmergy.control.live import Live
from stigmergy.node.settings import Settings, TraceSettings
from stigmergy.shard.tracing import TraceContext
from stigmergy.traces.search import find_spans
from stigmergy.traces.spans import Span
from tests.network.test_tell_router import Pass, Stage, wait

CONTEXT = TraceContext(b"t" * 16, b"s" * 8)


def spans(live: Live, job: str) -> list[Span]:
    return [span for span in find_spans(live.host.journal, [job], 100) if span is not None]


def told(seed: int, settings: Settings | None = None, trace: TraceContext | None = CONTEXT) -> list[Span]:
    """The spans of a tell from one node to the other, of both."""
    stage, found = Stage(seed, settings), list[Span]()

    async def scene() -> None:
        a, b, _ = await stage.start()
        await a.send("Cart/a1", Pass(to="Cart/b1", number=1), command_id="job", trace=trace)
        await wait(lambda: bool(b.query("Cart/b1").heard) and a.standing().owed == 0)
        await asyncio.sleep(5)  # of virtual time: what is settled may wait a second for the disk
        ids = [span.trace_id for span in spans(a, "job")]
        found.extend(span for live in (a, b) for span in spans(live, ids[0] if ids else "f" * 32))
        await stage.stop()

    stage.world.run(scene())
    return found


def test_a_trace_goes_from_node_to_node_and_a_run_replays_it() -> None:
    found = told(3)
    by_name = {span.name: span for span in found}
    assert set(by_name) == {"Cart Pass", "commit", "tell Got", "Cart Got"}
    assert len(found) == 5, "each input has a commit"
    assert {span.trace_id for span in found} == {CONTEXT.trace_id.hex()}
    assert by_name["Cart Got"].parent == by_name["tell Got"].span_id
    assert by_name["tell Got"].parent == by_name["Cart Pass"].span_id
    assert by_name["Cart Pass"].start_ns <= by_name["tell Got"].start_ns <= by_name["Cart Got"].start_ns
    assert told(3) == found


def test_a_sampled_command_begins_its_own_trace_in_a_simulation_too() -> None:
    settings = Settings(traces=TraceSettings(rules={"Pass": 1.0}))
    found = told(4, settings, None)
    assert found[0].parent == "", "it is the first"
    assert found[0].trace_id == told(5, settings, None)[0].trace_id, "by the command's id, whatever the seed"
    assert told(4, trace=None) == []
