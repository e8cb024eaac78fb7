"""Blobs in the simulator: one store for all nodes, in virtual time, the same in every run of a seed."""

import asyncio
from pathlib import Path

from stigmergy import Agent, Blob, Effects, Event, Order, Work, evolve, react
from stigmergy.node.declaration import Declaration
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run


class PhotoTaken(Event):
    photo: Blob


class Shrink(Work):
    photo: Blob


class Shrunk(Event):
    thumbnail: Blob


class Camera(Agent):
    thumbnail: Blob | None = None

    @react
    def shrink(self, event: PhotoTaken) -> Effects:
        yield Shrink(photo=event.photo)

    @evolve
    def shrunk(self, event: Shrunk) -> None:
        self.thumbnail = event.thumbnail


def declared() -> Declaration:
    fleet = Declaration("watch", agents=[Camera])

    @fleet.worker(Shrink)
    async def shrink(order: Order[Shrink]) -> Shrunk:
        photo = await fleet.blobs.fetch(order.effect.photo)
        return Shrunk(thumbnail=await fleet.blobs.put(photo[::10]))

    return fleet


def simulate(seed: int, folder: Path) -> tuple[str, bytes]:
    """The hash of a run in which a photo passes from one node to another, across a power loss."""
    world, found = Run(seed), list[bytes]()
    one, other = SimNode(world, lambda _: declared(), name="one"), SimNode(world, lambda _: declared(), name="other")

    async def main() -> None:
        photo = await (await one.start()).put(bytes(2_000_000))
        await one.lose_power()
        live = await other.start()
        await live.observe("Camera/c", PhotoTaken(photo=photo))
        while (camera := live.query("Camera/c", Camera)).thumbnail is None:  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.1)
        found.append(await live.fetch(camera.thumbnail))
        await live.fetch_to(photo, folder / "photo")
        await other.stop()

    world.run(main())
    return world.trace.hexdigest(), found[0]


def test_a_photo_passes_between_simulated_nodes(tmp_path: Path) -> None:
    first, thumbnail = simulate(7, tmp_path)
    assert thumbnail == bytes(200_000)
    assert (tmp_path / "photo").read_bytes() == bytes(2_000_000)
    assert simulate(7, tmp_path)[0] == first
