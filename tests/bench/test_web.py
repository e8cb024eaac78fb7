"""The benchmark of the page: how a trace of the browser is read."""

from typing import Any

from bench.web import read_trace


def event(name: str, begin_ms: float, took_ms: float, cpu_ms: float | None = None, tid: int = 1) -> dict[str, Any]:
    cpu = took_ms if cpu_ms is None else cpu_ms
    return {
        "ph": "X",
        "pid": 1,
        "tid": tid,
        "name": name,
        "ts": begin_ms * 1e3,
        "dur": took_ms * 1e3,
        "tdur": cpu * 1e3,
    }


def test_scripts_count_once_for_the_frame_behind_them() -> None:
    found = read_trace(
        [
            event("FireAnimationFrame", 0, 1),
            event("FunctionCall", 5, 8, cpu_ms=1.0),  # News; it was held up by others, which does not count.
            event("FunctionCall", 6, 2, cpu_ms=0.5),  # Within it.
            event("FunctionCall", 7, 1, tid=2),  # Of another thread.
            event("FireAnimationFrame", 20, 2),
            event("FunctionCall", 20.1, 1, cpu_ms=0.25),  # The frame itself.
            event("FunctionCall", 30, 9),  # Behind the last frame.
        ]
    )
    assert (found["frames"], found["frame_p95_ms"], found["script_p95_ms"]) == (2, 20.0, 1.25)
