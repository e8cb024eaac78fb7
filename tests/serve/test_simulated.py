"""A simulated run that is played back: `sim --serve` has the logs of all its nodes as one."""

from pathlib import Path

from tests.serve.rig import ServedProcess, SseClient

ROOT = Path(__file__).resolve().parents[2]
EVENTS = 200


def test_simulated_town_is_played_back() -> None:
    run = ["sim", "traffic", "--seed", "3", "--for", "5", "--faults", "none"]
    served = ServedProcess(ROOT, *run, "--serve", "127.0.0.1:0")
    try:
        page = served.get("/v1/page").json
        assert (page["mode"], page["fleet"]) == ("replay", "traffic")
        end = served.get("/v1/map").json
        names = {name for name, _ in end["names"]}
        assert {f"Intersection/r{row}c{column}" for row in range(2) for column in range(2)} <= names
        client = SseClient(served, f"?since={page['from']}")
        events = [client.next()[1] for _ in range(EVENTS)]
        client.close()
        assert [one["time"] for one in events] == sorted(one["time"] for one in events), "all nodes in one order"
        assert len({one["shard"] for one in events}) > 1
        assert {one["agent"] for one in events if one["agent"].startswith("Intersection/")} <= names
        last = events[-1]
        earlier = served.get(f"/v1/map?at={last['time']}").json
        assert earlier["time"] <= last["time"] < end["time"]
        for name in sorted(names):
            then = served.get(f"/v1/agents/{name}?at={last['time']}").json
            now = served.get(f"/v1/agents/{name}").json
            assert then["shard"] == now["shard"]
            assert then["position"] < now["position"]
            place, before = end["names"].index([name, 0]), earlier["names"].index([name, 0])
            assert now["state"]["phase"] == end["colour"][place]
            assert then["state"]["phase"] == earlier["colour"][before]
    finally:
        assert served.end() == 0
