"""The page with a fleet that moves: script time a frame in Chromium, bytes, and what it costs the node.

The fleet is `rigs.moving_fleet` as a process of its own, compiled, each agent moving twice a second. Times of scripts
are processor time from the browser's own trace, so other load does not count; times of frames need a quiet machine.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.targets import Target
from stigmergy.base.errors import ConfigError

AGENTS = 10_000
RATE_HZ = 2.0
WINDOW_S = 15.0
WAIT_S_MAX = 300.0
SCRIPTS = ("FunctionCall", "EvaluateScript", "RunMicrotasks")
FRAME = "FireAnimationFrame"
TARGETS = (Target("script_p95_ms", f"script time a frame, p95, {AGENTS} agents that move, ms", 2.0),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    add_common(parser)
    parser.add_argument("--agents", type=int, default=AGENTS, help=f"so many (default: {AGENTS})")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures."""
    agents = min(arguments.agents, 500) if arguments.quick else arguments.agents
    window_s = 3.0 if arguments.quick else WINDOW_S
    command = [sys.executable, "-m", "rigs.moving_fleet", "--agents", str(agents), "--listen", "127.0.0.1:0"]
    if arguments.quick:
        command.append("--plain")
    tokens = arguments.directory / "moving.tokens"
    with subprocess.Popen([*command, "--tokens", str(tokens)], stdout=subprocess.PIPE, text=True) as fleet:
        try:
            assert fleet.stdout is not None
            url = fleet.stdout.readline().strip()
            if not url:
                raise ConfigError("the fleet did not start; see above")
            return {"agents": agents, **_measure(url, fleet.pid, agents, window_s)}
        finally:
            fleet.terminate()


def charts(figures: dict[str, Any]) -> list[Chart]:
    """What is drawn of them."""
    bars = [Bar("script", figures["script_p95_ms"]), Bar("bound", TARGETS[0].bound)]
    return [Bars("script time a frame, p95", "ms", bars)]


def _measure(url: str, pid: int, agents: int, window_s: float) -> dict[str, Any]:
    from rigs.browser import running_browser

    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        until_s = time.monotonic() + WAIT_S_MAX
        while not page.evaluate(f"() => (globalThis.stigmergyMap?.positions.shown ?? 0) >= {agents}"):
            if time.monotonic() > until_s:
                raise ConfigError(f"the page did not show {agents} agents within {WAIT_S_MAX:.0f} s")
            page.wait_for_timeout(200)
        page.wait_for_timeout(window_s * 200)  # Until what runs often has been compiled.
        session = page.context.new_cdp_session(page)
        trace: list[dict[str, Any]] = []
        ended: list[bool] = []
        session.on("Tracing.dataCollected", lambda part: trace.extend(part["value"]))
        session.on("Tracing.tracingComplete", lambda _: ended.append(True))
        categories = ["devtools.timeline", "v8"]
        session.send(
            "Tracing.start", {"traceConfig": {"includedCategories": categories}, "transferMode": "ReportEvents"}
        )
        bytes_before = page.evaluate("() => stigmergyMap.feed.bytes")
        begin_s, before = time.monotonic(), _work(url, pid)
        page.wait_for_timeout(window_s * 1000)
        took_s = time.monotonic() - begin_s
        with_us = _cpu_us_per_event(before, _work(url, pid))
        received = page.evaluate("() => stigmergyMap.feed.bytes") - bytes_before
        session.send("Tracing.end")
        while not ended:
            page.wait_for_timeout(50)
    time.sleep(1.0)  # The node notices that the page has left.
    before = _work(url, pid)
    time.sleep(window_s)
    without_us = _cpu_us_per_event(before, _work(url, pid))
    core = RATE_HZ * agents / 1e6
    return {
        **read_trace(trace),
        "bytes_per_s_per_client": round(received / took_s),
        "server_cpu_share": round(max(0.0, with_us - without_us) * core, 3),
        "fleet_cpu_share": round(without_us * core, 3),
    }


def read_trace(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """Frames and script time of the page's own thread. A script belongs to the next frame that ends behind it."""
    frames = [one for one in trace if one.get("name") == FRAME and one.get("ph") == "X"]
    if len(frames) < 2:
        raise ConfigError("the browser drew no frames; is the machine this busy?")
    thread = statistics.mode((one["pid"], one["tid"]) for one in frames)
    frames = sorted((one for one in frames if (one["pid"], one["tid"]) == thread), key=lambda one: one["ts"])
    ends = [one["ts"] + one["dur"] for one in frames]
    spent_us = [0.0] * len(frames)
    covered = 0.0
    own = (one for one in trace if (one["pid"], one["tid"]) == thread and one.get("ph") == "X")
    for one in sorted((one for one in own if one["name"] in SCRIPTS), key=lambda one: (one["ts"], -one["dur"])):
        place = bisect.bisect_left(ends, one["ts"])
        if one["ts"] < covered or place == len(ends):  # A script within one that is counted, or behind the last frame.
            continue
        covered = one["ts"] + one["dur"]
        spent_us[place] += one.get("tdur", one["dur"])
    between_ms = [(later["ts"] - one["ts"]) / 1000 for one, later in pairwise(frames)]
    spent_ms = sorted(one / 1000 for one in spent_us[1:])
    return {
        "frames": len(frames),
        "script_p50_ms": round(_share(spent_ms, 0.5), 3),
        "script_p95_ms": round(_share(spent_ms, 0.95), 3),
        "frame_p50_ms": round(_share(sorted(between_ms), 0.5), 1),
        "frame_p95_ms": round(_share(sorted(between_ms), 0.95), 1),
    }


def _share(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def _work(url: str, pid: int) -> tuple[float, int]:
    """The processor time that a fleet has taken so far, in seconds, and its events."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    with urllib.request.urlopen(f"{url}/v1/status") as answer:
        events = int(json.load(answer)["events"])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), events


def _cpu_us_per_event(before: tuple[float, int], after: tuple[float, int]) -> float:
    """By event and not by second, because a fleet that others slow down does less."""
    return (after[0] - before[0]) * 1e6 / max(1, after[1] - before[1])
