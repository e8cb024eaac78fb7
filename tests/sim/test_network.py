"""The simulated network: what each fault does, that one seed is one history, and that it is cheap."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stigmergy.base.errors import Bug
from stigmergy.sim.loop import run
from stigmergy.sim.network import CALM, LinkFaults, Network, SimMesh
from stigmergy.sim.run import Trace

Heard = list[tuple[str, bytes]]


async def listen(network: Network, *nodes: str) -> tuple[dict[str, SimMesh], dict[str, Heard]]:
    meshes: dict[str, SimMesh] = {}
    heard: dict[str, Heard] = {}
    for node in nodes:
        meshes[node], heard[node] = network.mesh(node), []
        await meshes[node].open(lambda sender, body, into=heard[node]: into.append((sender, body)))  # type: ignore[misc]
    return meshes, heard


def sent_over(faults: LinkFaults, count: int = 2_000, seed: int = 1) -> tuple[Network, Heard]:
    network = Network(seed, faults=faults)

    async def main() -> Heard:
        meshes, heard = await listen(network, "a", "b")
        for number in range(count):
            meshes["a"].send_nowait("b", number.to_bytes(4, "big"))
            await asyncio.sleep(0.001)
        await asyncio.sleep(10)
        return heard["b"]

    return network, run(main(), seed=seed)


def test_without_faults_all_arrive_in_order() -> None:
    network, heard = sent_over(CALM)
    assert [int.from_bytes(body, "big") for _, body in heard] == list(range(2_000))
    assert network.counters.delivered_count == network.counters.sent_count == 2_000


def test_loss() -> None:
    network, heard = sent_over(LinkFaults(loss=0.3))
    assert 1_300 < len(heard) < 1_500
    assert network.counters.lost_count == 2_000 - len(heard)


def test_duplication() -> None:
    network, heard = sent_over(LinkFaults(duplication=0.1))
    assert len(heard) == 2_000 + network.counters.duplicated_count
    assert 120 < network.counters.duplicated_count < 280
    assert len({body for _, body in heard}) == 2_000


def test_reordering() -> None:
    network, heard = sent_over(LinkFaults(reordering=0.1))
    numbers = [int.from_bytes(body, "big") for _, body in heard]
    assert sorted(numbers) == list(range(2_000)) != numbers
    assert network.counters.reordered_count > 100


def test_delay_has_a_heavy_tail_with_a_bound() -> None:
    network = Network(3, faults=LinkFaults(jitter_s=0.01, delay_s_max=0.2))
    took_s: list[float] = []

    async def main() -> None:
        meshes, _ = await listen(network, "a", "b")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        network.watch = lambda what, *_: took_s.append(loop.time() - begun_s) if what == "delivered" else None
        for _ in range(5_000):
            meshes["a"].send_nowait("b", b"")
        await asyncio.sleep(10)

    run(main(), seed=3)
    took_s.sort()
    assert len(took_s) == 5_000
    assert took_s[0] >= 0.001
    assert took_s[2_500] < 0.008  # half of them in less than the average
    assert took_s[-1] == pytest.approx(0.2)  # and some at the bound


def test_corruption_changes_bytes() -> None:
    network, heard = sent_over(LinkFaults(corruption=0.2))
    sent = {number.to_bytes(4, "big") for number in range(2_000)}
    assert len(heard) == 2_000
    damaged = sum(body != number.to_bytes(4, "big") for number, (_, body) in enumerate(heard))
    assert damaged == network.counters.corrupted_count > 300
    assert sum(len(body) < 4 for _, body in heard) > 50
    assert sum(len(body) == 4 and body not in sent for _, body in heard) > 50


def test_cuts_and_partitions() -> None:
    network = Network(1)

    async def main() -> None:
        meshes, heard = await listen(network, "a", "b", "c", "d")

        async def reached() -> set[str]:
            for box in heard.values():
                box.clear()
            for sender in meshes:
                for to in meshes:
                    meshes[sender].send_nowait(to, b"x") if sender != to else None
            await asyncio.sleep(1)
            return {sender + to for to, box in heard.items() for sender, _ in box}

        everything = {one + other for one in "abcd" for other in "abcd" if one != other}
        assert await reached() == everything
        network.cut("a", "b", both=False)
        assert await reached() == everything - {"ab"}
        network.cut("a", "b")
        assert await reached() == everything - {"ab", "ba"}
        network.mend("b", "a")
        assert await reached() == everything
        network.partition(("a", "b"), ("c",))
        assert await reached() == {"ab", "ba"}
        network.partition(("a", "b"))
        assert await reached() == {"ab", "ba", "cd", "dc"}
        network.heal()
        network.isolate("d")
        assert await reached() == {pair for pair in everything if "d" not in pair}
        network.set_link("a", "b", LinkFaults(loss=1.0))
        network.heal()
        assert await reached() == everything - {"ab"}
        network.set_link("a", "b", None)
        assert await reached() == everything
        network.faults = LinkFaults(loss=1.0)
        network.set_link("a", "b", CALM)
        assert await reached() == {"ab"}
        network.calm()
        assert await reached() == everything

    run(main(), seed=1)


def test_cut_takes_what_is_under_way() -> None:
    network = Network(1)

    async def main() -> Heard:
        meshes, heard = await listen(network, "a", "b")
        meshes["a"].send_nowait("b", b"x")
        network.cut("a", "b")
        await asyncio.sleep(1)
        return heard["b"]

    assert run(main(), seed=1) == []
    assert network.counters.cut_count == 1


def test_crash_takes_the_mesh_and_the_next_life_hears_what_was_under_way() -> None:
    network = Network(1)

    async def main() -> None:
        meshes, heard = await listen(network, "a", "b")
        network.crash("b")
        meshes["a"].send_nowait("b", b"to nobody")
        await asyncio.sleep(1)
        meshes["b"].send_nowait("a", b"from the dead")
        meshes["a"].send_nowait("b", b"late")
        reborn, heard_again = await listen(network, "b")
        await asyncio.sleep(1)
        reborn["b"].send_nowait("a", b"alive")
        await asyncio.sleep(1)
        assert heard["b"] == []
        assert heard_again["b"] == [("a", b"late")]
        assert heard["a"] == [("b", b"alive")]
        assert meshes["b"].counters.dropped_count == 1
        assert network.nodes() == ["a", "b"]
        with pytest.raises(Bug):
            await meshes["b"].open(lambda *_: None)

    run(main(), seed=1)
    assert network.counters.absent_count == 1


def test_two_of_one_name_both_hear() -> None:
    network = Network(1)

    async def main() -> None:
        _, first = await listen(network, "b")
        second_mesh, second = await listen(network, "b")
        meshes, _ = await listen(network, "a")
        meshes["a"].send_nowait("b", b"x")
        await asyncio.sleep(1)
        assert first["b"] == second["b"] == [("a", b"x")]
        await second_mesh["b"].close()
        meshes["a"].send_nowait("b", b"y")
        await asyncio.sleep(1)
        assert first["b"] == [("a", b"x"), ("a", b"y")]
        assert second["b"] == [("a", b"x")]

    run(main(), seed=1)


@pytest.mark.parametrize("wrong", [{"loss": 1.1}, {"loss": -0.1}, {"delay_s": 3.0}, {"jitter_s": -1.0}])
def test_faults_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"share|delay"):
        LinkFaults(**wrong)  # type: ignore[arg-type]


def test_a_name_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="called"):
        Network(1).mesh("a/b")


def traced(seed: int, senders: str = "abcd") -> str:
    """The hash of everything that happened between four nodes with all faults."""
    trace = Trace()
    network = Network(seed, faults=LinkFaults(0.2, 0.1, 0.2, 0.05, jitter_s=0.02))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        meshes, _ = await listen(network, *senders)
        network.watch = lambda what, sender, to, body: trace.record(int(loop.time() * 1e9), sender, what, [to, body])
        for number in range(200):
            for sender in sorted(meshes):
                for to in sorted(meshes):
                    meshes[sender].send_nowait(to, b"%d" % number)
            await asyncio.sleep(0.003)
        await asyncio.sleep(10)

    run(main(), seed=seed, shuffle=True)
    return trace.hexdigest()


def test_one_seed_is_one_history_in_every_process() -> None:
    root = Path(__file__).resolve().parents[2]
    program = "from tests.sim.test_network import traced; print(traced(5))"
    elsewhere = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{root}/src:{root}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "4711")
    ]
    assert elsewhere == [traced(5)] * 2
    assert traced(5) != traced(6)


def test_each_sender_has_a_chance_of_its_own() -> None:
    def lost(noise: bool) -> Counter[bytes]:
        network = Network(9, faults=LinkFaults(loss=0.5))
        losses: Counter[bytes] = Counter()

        async def main() -> None:
            meshes, _ = await listen(network, "a", "b", "c")

            def watch(what: str, sender: str, to: str, body: bytes) -> None:
                if what == "lost" and sender == "a":
                    losses[body] += 1

            network.watch = watch
            for number in range(100):
                meshes["a"].send_nowait("b", b"%d" % number)
                if noise:
                    meshes["c"].send_nowait("b", b"noise")
            await asyncio.sleep(5)

        run(main(), seed=9)
        return losses

    assert lost(noise=False) == lost(noise=True)
