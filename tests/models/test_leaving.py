"""A node that is left while its models run ends as it should: a real process, and ONNX Runtime inside of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from stigmergy.models.bundle import Example, ModelClass, write_bundle
from stigmergy.models.runtime import pack_row
from tests.models.nets import net, net_manifest
from tests.models.sensors import KEY, SIGNER

COLUMNS = 64
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
