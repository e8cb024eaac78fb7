"""Models on a node next to bare ONNX Runtime: answers a second, latency, and what INT8 saves.

Each agent asks a model, and asks again when the answer has come; every answer is an event on SQLite, chained and
signed. Bare ONNX Runtime answers the same rows in batches as large as the node's were, on arrays that are ready, and
nobody keeps its answers. `runtime` is our adapter of it alone, from packed rows to tuples. Three nets: `tiny`, some
numbers of a sensor; `batch`, about a millisecond for a batch; `large`, about a hundred times its work, where the
model's own time counts most. Windows of all take turns; a ratio is one of neighbouring windows, and the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

import stigmergy as st
from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.targets import Target
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models import runtimes
from stigmergy.models.bundle import Bundle, Manifest, ModelClass, inspect_bundle, write_bundle
from stigmergy.models.examples import Examples
from stigmergy.models.packing import pack
from stigmergy.models.runtime import LoadedModel, pack_row, unpack_row

TARGETS = (Target("ratio", "answers a second of the node / of bare ONNX Runtime, large", 0.6, at_least=True),)
SIGNER = Ed25519Signer(bytes(range(32)))
COUNTED = "bench-counted"
HEADLINE = "large"


class Net(Struct, frozen=True):
    """A net with two hidden layers."""

    name: str
    inputs: int
    hidden: int
    answers: int
    """In a window."""


class Sizes(Struct, frozen=True):
    """How much is measured."""

    windows: int
    agents: int
    nets: tuple[Net, ...]


FULL = Sizes(5, 512, (Net("tiny", 15, 32, 20_000), Net("batch", 64, 256, 20_000), Net("large", 256, 2_560, 10_000)))
QUICK = Sizes(1, 16, (Net("tiny", 15, 32, 64), Net("large", 16, 64, 64)))


class BenchAnswer(st.Model, name="bench", within_s=60.0):
    """What the nets say."""

    p: float


class BenchRound(st.Event):
    """Begins, or ends, one question."""

    left: int


class BenchSensor(st.Agent):
    """Asks, and asks again."""

    left: int = 0

    @st.evolve
    def counted(self, event: BenchRound) -> None:
        """How often it will ask yet."""
        self.left = event.left

    @st.react
    def ask(self, event: BenchRound) -> st.Effects:
        """Asks with the same numbers each time."""
        if event.left:
            yield BenchAnswer.ask(Window.numbers)

    @st.decide
    def answered(self, result: st.Inferred[BenchAnswer]) -> st.Events:
        """One less to go."""
        Window.latencies_s.append(result.source.latency_s)
        if len(Window.latencies_s) == Window.answers:
            Window.ended.set()
        yield BenchRound(left=self.left - 1)


class Window:
    """What is counted beside the node: one process, one window at a time."""

    numbers: tuple[float, ...] = ()
    answers = 0
    """Then it ends."""
    ended = asyncio.Event()
    latencies_s: list[float] = []  # noqa: RUF012
    batches: list[int] = []  # noqa: RUF012
    model_s = 0.0


class CountedModel:
    """Notes how large the batches of a node are, and how long the runtime takes."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.memory_bytes = loaded.memory_bytes
        self.close = loaded.close

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        """The answers."""
        before_s = time.perf_counter()
        answers = self._loaded.run(rows)
        Window.model_s += time.perf_counter() - before_s
        Window.batches.append(len(rows))
        return answers


class CountedRuntime:
    """ONNX Runtime, counted."""

    name = COUNTED

    def load(self, bundle: Bundle, threads: int = 1) -> LoadedModel:
        """Loads it as ever."""
        return CountedModel(runtimes.find_runtime("onnx").load(bundle, threads))


make_runtime = CountedRuntime


class Timed(Struct, frozen=True):
    """One window of one net."""

    node_per_s: float
    node_cpu_s: float
    """For an answer."""
    runtime_per_s: float
    bare_per_s: float
    rows_per_batch: float
    model_share: float
    """Of the node's time in which a batch ran."""
    latencies_s: list[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench inference`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures all nets in turn."""
    sizes = QUICK if arguments.quick else FULL
    bundles = {net.name: _bundle(net) for net in sizes.nets}
    timed: dict[str, list[Timed]] = {net.name: [] for net in sizes.nets}
    runtimes.OURS[COUNTED] = "bench.inference"
    try:
        for number in range(sizes.windows + 1):
            for net in sizes.nets:
                with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="bench-") as folder:
                    window = _window(net, bundles[net.name], sizes.agents, Path(folder))
                if number or sizes.windows == 1:  # the first round warms everything up
                    timed[net.name].append(window)
    finally:
        del runtimes.OURS[COUNTED]
    figures: dict[str, Any] = {"windows": sizes.windows, "agents": sizes.agents, "load": round(os.getloadavg()[0], 1)}
    for net in sizes.nets:
        figures |= _figures(f"{net.name}_", bundles[net.name], timed[net.name])
    figures |= {
        "inferences_per_s": figures["tiny_inferences_per_s"],
        "p50_ms": figures["tiny_p50_ms"],
        "p99_ms": figures["tiny_p99_ms"],
        "ratio": figures[f"{HEADLINE}_ratio"],
    }
    return figures | {"int8": [_int8(net.name, bundles[net.name]) for net in sizes.nets]}


def charts(figures: dict[str, Any]) -> list[Chart]:
    """The ratios."""
    names = [name.removesuffix("_ratio") for name in figures if name.endswith("_ratio")]
    return [Bars("as fast as bare ONNX Runtime", "", [Bar(name, figures[f"{name}_ratio"]) for name in names])]


def _figures(name: str, bundle: Bundle, windows: list[Timed]) -> dict[str, Any]:
    latencies_s = sorted(latency_s for one in windows for latency_s in one.latencies_s)
    return {
        f"{name}model_bytes": len(bundle.payload),
        f"{name}inferences_per_s": round(statistics.median(one.node_per_s for one in windows)),
        f"{name}p50_ms": round(1e3 * latencies_s[len(latencies_s) // 2], 2),
        f"{name}p99_ms": round(1e3 * latencies_s[len(latencies_s) * 99 // 100], 2),
        f"{name}rows_per_batch": round(statistics.median(one.rows_per_batch for one in windows), 1),
        f"{name}batch_ms": round(1e3 * statistics.median(one.rows_per_batch / one.bare_per_s for one in windows), 3),
        f"{name}bare_per_s": round(statistics.median(one.bare_per_s for one in windows)),
        f"{name}ratio": round(statistics.median(one.node_per_s / one.bare_per_s for one in windows), 4),
        f"{name}cpu_us_per_answer": round(1e6 * statistics.median(one.node_cpu_s for one in windows), 1),
        f"{name}runtime_ratio": round(statistics.median(one.runtime_per_s / one.bare_per_s for one in windows), 3),
        f"{name}model_share": round(statistics.median(one.model_share for one in windows), 3),
    }


def _window(net: Net, bundle: Bundle, agents: int, folder: Path) -> Timed:
    (folder / "models").mkdir()
    manifest = bundle.manifest
    counted = write_bundle(_as_counted(manifest), bundle.payload, SIGNER)
    (folder / "models" / "bench-1.0.0.model").write_bytes(counted)
    Window.numbers = unpack_row(manifest.examples[0].inputs)
    Window.latencies_s, Window.batches, Window.model_s = [], [], 0.0
    rounds = max(1, net.answers // agents)
    answers = Window.answers = agents * rounds
    Window.ended = asyncio.Event()
    took_s, cpu_s = asyncio.run(_node(folder, agents, rounds))
    mean = answers / len(Window.batches)
    rows = [manifest.examples[index % len(manifest.examples)].inputs for index in range(round(mean))]
    runtime_per_s, bare_per_s = _without_a_node(bundle, rows, answers)
    share = Window.model_s / took_s
    return Timed(answers / took_s, cpu_s / answers, runtime_per_s, bare_per_s, mean, share, Window.latencies_s)


async def _node(folder: Path, agents: int, rounds: int) -> tuple[float, float]:
    fleet = st.Fleet("bench", agents=[BenchSensor])
    running = fleet.running(
        journal=f"sqlite:{folder}/bench.db", models=f"folder:{folder}/models", model_keys=[SIGNER.public_key.hex()]
    )
    async with running as live:
        before_s, before_cpu_s = time.perf_counter(), time.process_time()
        begun = [live.observe(f"BenchSensor/{number}", BenchRound(left=rounds)) for number in range(agents)]
        await asyncio.gather(*begun)
        await Window.ended.wait()
        return time.perf_counter() - before_s, time.process_time() - before_cpu_s


def _without_a_node(bundle: Bundle, rows: Sequence[bytes], answers: int) -> tuple[float, float]:
    """Rows a second of our adapter, and of ONNX Runtime itself, in turns of one batch each."""
    from stigmergy.models.onnx_runtime import arrays_of, open_session

    loaded = runtimes.find_runtime("onnx").load(bundle, 1)
    session, (feed,) = open_session(bundle.payload), arrays_of(bundle, rows)
    loaded.run(rows)
    session.run(None, feed)
    runtime_s = bare_s = 0.0
    turns = max(2, answers // len(rows))
    for _ in range(turns):
        first_s = time.perf_counter()
        loaded.run(rows)
        second_s = time.perf_counter()
        session.run(None, feed)
        bare_s += time.perf_counter() - second_s
        runtime_s += second_s - first_s
    loaded.close()
    return turns * len(rows) / runtime_s, turns * len(rows) / bare_s


def _int8(name: str, bundle: Bundle) -> dict[str, Any]:
    """Size and time of one row, as it is and INT8."""
    from stigmergy.models.quantising import quantise

    rows = [example.inputs for example in bundle.manifest.examples]
    was, *forms = quantise(bundle, Examples(rows, []))
    form = min(forms, key=lambda one: one.p50_s)
    return {
        "name": name,
        "way": form.way,
        "float_bytes": len(was.payload),
        "int8_bytes": len(form.payload),
        "float_p50_ms": round(1e3 * was.p50_s, 4),
        "int8_p50_ms": round(1e3 * form.p50_s, 4),
        "largest_difference": round(form.largest_difference, 4),
    }


def _as_counted(manifest: Manifest) -> Manifest:
    from msgspec.structs import replace

    return replace(manifest, runtime=COUNTED)


def _bundle(net: Net) -> Bundle:
    """Weights by chance, with recorded answers."""
    import numpy
    from onnx import TensorProto, helper, numpy_helper

    random = numpy.random.default_rng(7)
    shapes = {"w1": (net.inputs, net.hidden), "w2": (net.hidden, net.hidden), "w3": (net.hidden, 1)}
    weights = {name: random.normal(size=shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    steps = [("MatMul", ["x", "w1"], "a"), ("Relu", ["a"], "b"), ("MatMul", ["b", "w2"], "c"), ("Relu", ["c"], "d")]
    steps += [("MatMul", ["d", "w3"], "e"), ("Sigmoid", ["e"], "p")]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, [output]) for operator, inputs, output in steps],
        net.name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", net.inputs])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(value.astype("f4"), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    manifest = Manifest(
        name="bench",
        version="1.0.0",
        runtime="onnx",
        model_class=ModelClass.EDGE,
        inputs=tuple(f"x{index}" for index in range(net.inputs)),
        outputs=("p",),
    )
    rows = [pack_row([float(value) for value in row]) for row in random.normal(size=(32, net.inputs))]
    return inspect_bundle(pack(manifest, model.SerializeToString(), rows, None))
