"""What fails is in the log: an input that a handler raised on, an effect that was given up, and tries in between."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import SECOND_NS
from stigmergy.diagnostics.logger import LogSubject
from stigmergy.node import failures
from stigmergy.node.failures import FailureReport
from stigmergy.shard.tracing import TraceContext
from stigmergy.sim.node import SimNode
from stigmergy.traces.search import find_spans
from tests.node.counting import Counted, Spoilt
from tests.node.counting import declare as declare_counters
from tests.node.rig import play
from tests.node.test_effector import QUICK, Press, Wanted, declare, settled, started
from tests.traces.jobs import Dispatch, Go, make_fleet


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[LogSubject, logging.LogRecord]]:
    found: list[tuple[Any, logging.LogRecord]] = [(getattr(one, "about", None), one) for one in caplog.records]
    return [(about, record) for about, record in found if about is not None]


def test_a_handler_that_raises_is_in_the_log_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Counter/a", Spoilt(number=1))
        await live.observe("Nobody/a", Counted(number=1))
        (letter, _) = live.dead_letters()
        (raised, record), (useless, other) = [one for one in told(caplog) if one[0].code == "input-failed"]
        assert (raised.agent, raised.shard, raised.fields["input"]) == ("Counter/a", 0, "Spoilt")
        assert raised.fields["letter"] == letter.letter
        assert record.getMessage().startswith("Counter/a failed on Spoilt: ")
        assert record.exc_text is not None
        assert "counting.py" in record.exc_text
        assert (useless.agent, other.exc_text) == ("Nobody/a", None)

    play(declare_counters(), main)


def test_an_effect_that_is_given_up_is_in_the_log_and_its_tries_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="stigmergy")
    fleet = declare()

    @fleet.actuator(Press)
    def press(_: Order[Press]) -> None:
        raise OSError("the door is stuck \udcff")

    async def main(node: SimNode) -> None:
        await started(node, event=Wanted(number=1))
        await settled(node)

    play(fleet, main, settings=QUICK)
    found = [(about.code, record.levelno) for about, record in told(caplog) if about.code.startswith("effect-")]
    assert found == [("effect-retried", logging.DEBUG)] * (len(found) - 1) + [("effect-failed", logging.WARNING)]
    assert len(found) == QUICK.effect_tries
    about, record = told(caplog)[-1]
    assert about.fields["effect"] == "Press"
    assert "the door is stuck" in record.getMessage()
    assert record.exc_text is not None
    assert record.exc_text.encode()  # without what no file takes


def traces_of(caplog: pytest.LogCaptureFixture, code: str) -> list[str]:
    return [about.trace for about, _ in told(caplog) if about.code == code]


def test_lines_about_an_input_name_its_trace(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Also if the failure itself begins the trace; by its id the command finds it."""
    settings = st.Settings(traces=st.TraceSettings(rules={"Flown": 0.001}))

    async def run() -> None:
        async with make_fleet(settings).running(journal=f"sqlite:{tmp_path / 'jobs.db'}") as live:
            sampled = TraceContext(bytes(range(16)), bytes(range(8)))
            for number, context in enumerate((sampled, None, None)):
                command, command_id = Dispatch(drone="Drone/d", job="broken"), f"id-{number}" if number < 2 else None
                await live.send(f"Tower/{number}", command, command_id=command_id, trace=context)
            await live.observe("Nobody/a", Go(job="J"))
            spans = [span for span in find_spans(live.host.journal, ["Tower/0", "Tower/1", "Tower/2"], 9) if span]
            begun = [span.trace_id for span in spans if span.name == "Tower Dispatch"]
            assert traces_of(caplog, "input-failed")[:3] == begun
            assert begun[0] == sampled.trace_id.hex()
            (of_nobody,) = [span.trace_id for span in find_spans(live.host.journal, ["Nobody/a"], 9) if span]
            assert traces_of(caplog, "input-failed")[3:] == [of_nobody]

    asyncio.run(run())


def test_lines_about_an_effect_name_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="stigmergy")
    fleet = declare()

    @fleet.actuator(Press)
    async def press(_: Order[Press]) -> None:
        raise OSError("stuck")

    async def main(node: SimNode) -> None:
        live = await node.start()
        context = TraceContext(bytes(range(16)), bytes(range(8)))
        await live.host.intake.observe("Robot/a", Wanted(number=1), trace=context)
        await settled(node)

    play(fleet, main, settings=QUICK)
    trace = bytes(range(16)).hex()
    assert traces_of(caplog, "effect-retried") == [trace] * (QUICK.effect_tries - 1)
    assert traces_of(caplog, "effect-failed") == [trace]


def test_the_same_is_told_once_a_minute_with_its_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "REPORTED_MAX", 2)
    now_ns = 0
    report = FailureReport(lambda: now_ns)

    def fail(agent: str) -> list[str]:
        caplog.clear()
        report.effect_failed(0, agent, "Press", "k", "stuck")
        return caplog.messages

    assert fail("Robot/1") == ["Press of Robot/1 failed: stuck"]
    assert fail("Robot/1") == []
    assert fail("Robot/2") == ["Press of Robot/2 failed: stuck"]
    assert fail("Robot/3") == ["Press of Robot/3 failed: stuck"]  # the first of all others
    assert fail("Robot/4") == []
    now_ns = 61 * SECOND_NS
    assert fail("Robot/1") == ["Press of Robot/1 failed: stuck (1 more since the last report)"]
    assert fail("Robot/1") == []
