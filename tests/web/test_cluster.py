"""The page of a fleet on workers: its shards, their owners, and what it says when one of them is gone."""

from collections.abc import Callable
from pathlib import Path

from stigmergy.testing.nats import start_single
from tests.serve.rig import ServedProcess, wait_until
from tests.serve.test_map import start_worker
from tests.web.conftest import Screen, fly
from tests.web.town import make_town


def steps_meet_all_shards(served: ServedProcess) -> None:
    """Back from the end, event by event, over all owners: the order is that of the way on."""
    on = served.get("/v1/page/events?limit=100&time=2020-01-01T00:00:00Z").json["events"]
    kept = [one["kept"] for one in on]
    assert kept == sorted(kept)
    assert len(on) >= 9
    assert len({one["shard"] for one in on}) > 1
    start = ""
    for one in reversed(on):
        (found,) = served.get(f"/v1/page/events?back=1{start}").json["events"]
        assert found == one
        start = f"&event={one['shard']}:{one['position']}.{one['index']}"
    assert served.get(f"/v1/page/events?back=1{start}").json["events"] == []


def test_a_shard_that_moves_is_seen(tmp_path: Path, show: Callable[..., Screen]) -> None:
    (tmp_path / "server").mkdir()
    make_town(tmp_path)
    with start_single(tmp_path / "server") as server:
        workers = [start_worker(tmp_path, server.url, "one", "--bus", server.url)]
        served: ServedProcess | None = None
        try:
            served = ServedProcess(tmp_path, "serve", "town:fleet", "--nats", server.url, "--listen", "127.0.0.1:0")
            wait_until(lambda: served.get("/readyz").status == 200)
            fly(served, "C-1", 52.0, 4.3)
            screen = show(served.url).open()
            screen.wait("map.screenOf('Drone/C-1')")
            for number in range(8):
                fly(served, f"C-{number}", 52.0, 4.3)
            steps_meet_all_shards(served)
            screen.page.keyboard.press("4")
            table = screen.page.get_by_role("table").filter(has_text="owner")
            table.get_by_role("cell", name=str(workers[0].pid)).first.wait_for()
            servers = screen.page.get_by_role("region", name="Servers")
            servers.get_by_role("cell", name="up", exact=True).wait_for()
            workers.append(start_worker(tmp_path, server.url, "two", "--bus", server.url))
            workers[0].kill()
            table.get_by_role("cell", name=str(workers[1].pid)).first.wait_for()
            screen.page.get_by_text("shard 0 moved from").first.wait_for()
            screen.page.get_by_text("live", exact=True).first.wait_for()
            screen.page.keyboard.press("1")
            fly(served, "C-1", 53.0, 5.3)
            screen.wait("Math.abs(map.positions.x[map.positions.rows.get('Drone/C-1')] - 5.3) < 1e-6")
        finally:
            if served is not None:
                served.end()
            for worker in workers:
                worker.kill()
                worker.wait()
