"""A node that is left while its models run ends as it should: a real process, and ONNX Runtime inside of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from stigmergy.models.bundle import Example, Manifest, ModelClass, write_bundle
from stigmergy.models.runtime import pack_row
from tests.models.nets import net, net_manifest
from tests.models.sensors import KEY, SIGNER

COLUMNS = 64
STEPS = 1_000_000
"""Of a run that goes on for seconds."""
HIDDEN = 20_000
"""So wide that explaining the answers of a batch takes a third of a second, and the last bytes of a process less."""
CHILD = f"""
import asyncio, sys
import stigmergy as st

class GasAlarm(st.Model, name="gas-alarm", within_s=60, explain=True):
    co: float

class Sampled(st.Event):
    co: float

class Sensor(st.Agent):
    answers: int = 0

    @st.react
    def look(self, event: Sampled) -> st.Effects:
        yield GasAlarm.ask([event.co] * {COLUMNS})

    @st.evolve
    def answered(self, result: st.Inferred[GasAlarm]) -> None:
        self.answers += 1

async def main() -> None:
    settings = st.Settings(models=st.ModelSettings(batch_rows_max=16, hung_s=3600, drain_s=120))
    fleet = st.Fleet("gas", agents=[Sensor], settings=settings)
    where = {{"models": "folder:" + sys.argv[1], "model_keys": ["{KEY}"]}}
    async with fleet.running(journal="memory:", **where) as live:
        for _ in range(1000):
            await live.observe("Sensor/s1", Sampled(1))
        while not live.query("Sensor/s1", Sensor).answers:
            await asyncio.sleep(0.001)
        assert live.models is not None and live.models.waiting
    print("left", flush=True)

asyncio.run(main())
"""


def test_a_node_that_is_left_in_a_burst_of_questions_ends_well(tmp_path: Path) -> None:
    payload, answer = net(inputs=COLUMNS, hidden=HIDDEN)
    row = [0.0] * COLUMNS
    named = msgspec.structs.replace(
        net_manifest(answer, rows=[row]),
        model_class=ModelClass.SERVER,
        inputs=tuple(f"x{number}" for number in range(COLUMNS)),
        examples=(Example(pack_row(row), tuple(map(float, answer([row])[0]))),),
    )
    (tmp_path / "gas-alarm-1.2.0.model").write_bytes(write_bundle(named, payload, SIGNER))
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


HANGING = f"""
import asyncio, os, sys, threading, time, types
import stigmergy as st

class GasAlarm(st.Model, name="gas-alarm", within_s=60):
    co: float

class Sampled(st.Event):
    co: float

class Sensor(st.Agent):
    @st.react
    def look(self, event: Sampled) -> st.Effects:
        yield GasAlarm.ask([event.co])

    @st.evolve
    def answered(self, result: st.Inferred[GasAlarm]) -> None:
        pass

def running(tasks="/proc/self/task", own=threading.get_native_id(), listdir=os.listdir, open=open):
    for task in listdir(tasks):
        with open(f"{{tasks}}/{{task}}/stat") as stat:
            if int(task) != own and stat.read().rpartition(")")[2].split()[0] == "R":
                return True
    return False

class Late:
    # The interpreter is ending when this goes, and it goes when no other thread has anything to do any more.
    def __del__(self, running=running, sleep=time.sleep, write=os.write):
        while running():
            sleep(0.01)
        sleep(0.1)
        write(1, b"late\\n")

async def main() -> None:
    settings = st.Settings(models=st.ModelSettings(hung_s=3600, drain_s=0.05))
    fleet = st.Fleet("gas", agents=[Sensor], settings=settings)
    where = {{"models": "folder:" + sys.argv[1], "model_keys": ["{KEY}"]}}
    async with fleet.running(journal="memory:", **where) as live:
        await live.observe("Sensor/s1", Sampled({STEPS}))
        looks = 0
        while looks < 5:  # so long a thread has much to do only in the runtime
            await asyncio.sleep(0.005)
            looks = looks + 1 if running() else 0
    print("left", running(), flush=True)

asyncio.run(main())
sys.modules["late"] = types.ModuleType("late")
sys.modules["late"].late = Late()
sys.exit(3)
"""


def steps_net() -> bytes:
    """A net that takes as many steps as its input says."""
    from onnx import TensorProto, helper

    one = helper.make_tensor("one", TensorProto.FLOAT, [1, 1], [1.0])
    step = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["still"]),
            helper.make_node("Constant", [], ["one"], value=one),
            helper.make_node("Add", ["before", "one"], ["after"]),
        ],
        "step",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [None, 1]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [None, 1]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Cast", ["most"], ["steps"], to=TensorProto.INT64),
            helper.make_node("Loop", ["steps", "", "x"], ["p"], body=step),
        ],
        "steps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["batch", 1])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def test_a_process_ends_as_it_says_although_a_runtime_hangs(tmp_path: Path) -> None:
    named = Manifest(
        name="gas-alarm",
        version="1.2.0",
        runtime="onnx",
        model_class=ModelClass.EDGE,
        inputs=("x",),
        outputs=("co",),
        examples=(Example(pack_row([0.0]), (0.0,)),),
    )
    (tmp_path / "gas-alarm-1.2.0.model").write_bytes(write_bundle(named, steps_net(), SIGNER))
    done = subprocess.run([sys.executable, "-c", HANGING, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "left True\nlate\n"), done.stderr
    assert "a thread in a runtime did not" in done.stderr
