"""The control endpoint of several owners: who is asked, what is added up, and what is said of one that is down."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from stigmergy.base.errors import ConfigError, NotRunning, StigmergyError
from stigmergy.control import protocol
from stigmergy.control.protocol import ExportRequest, Request, read_request, refusal, write_reply, write_request
from stigmergy.control.replies import StatusReply
from stigmergy.control.router import ControlRouter, MergedEntries, added_status
from stigmergy.shard.homes import Homes, shard_of

SHARDS = 2
Answer = Callable[[dict[str, Any]], list[bytes]]
AGENTS = {process: next(f"A/{n}" for n in range(99) if shard_of(f"A/{n}", SHARDS) == process - 1) for process in (1, 2)}


def ok(value: Any) -> bytes:
    return write_reply(protocol.single(value))


def item(value: Any) -> bytes:
    return write_reply(protocol.item(value))


def write_error(error: Exception) -> bytes:
    return write_reply(refusal(error))


def stream(*items: Any) -> list[bytes]:
    return [*map(item, items), write_reply(protocol.end(len(items)))]


def status(**other: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("agents", "events", "commits", "owed", "waiting", "dead_letters", "journal_bytes"), 3)
    return {
        **counts,
        "fleet": "f",
        "version": "1",
        "pid": 7,
        "up_s": 1.5,
        "cpu_s": 0.25,
        "memory_peak_bytes": 1000,
        "journal": "sqlite:part",
        "stopped": {},
        "heads": [],
        "signers": [{"algorithm": 1, "public_key": "aa", "revoked_after": None, "signs_now": True}],
        "recovered": {"commits": 1, "events": 2, "signatures": 1, "snapshots": {}, "passed_over": []},
        "counters": {"accepted": 2},
        "troubles": [],
        "link": {"state": "none", "why": "", "owed": 0, "members": 0},
        **other,
    }


class Process:
    """A process that answers as the test says."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[dict[str, Any]] = []
        self.is_down = False
        self.closed = 0

    async def ask(self, request: Request[Any]) -> AsyncIterator[bytes]:
        if self.is_down:
            raise NotRunning("nobody is there")
        self.asked.append(json.loads(write_request(request)))
        try:
            for line in self._answer(self.asked[-1]):
                yield line
                await asyncio.sleep(0)
            await asyncio.sleep(3600)
        finally:
            self.closed += 1


class Board:
    """A router over two shards, each with an owner."""

    def __init__(self, *answers: Answer) -> None:
        self.processes = [Process(answer) for answer in answers]
        self.board = ControlRouter("f", "nats:all", Homes(SHARDS), self.processes)

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        return asyncio.run(self._ask(request))

    async def _ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers as lines would have them; the error that ends them is the last."""
        found: list[protocol.Answer] = []
        try:
            answers = await self.board.answer(read_request(json.dumps({"v": 1, **request}).encode()))
            if isinstance(answers, AsyncIterator):
                async for answer in answers:
                    found.append(answer)
            else:
                found.extend(answers)
        except StigmergyError as error:
            found.append(refusal(error))
        return [json.loads(one if isinstance(one, bytes) else write_reply(one)) for one in found]


def both(answer: Answer) -> Board:
    return Board(answer, answer)


@pytest.mark.parametrize("process", [1, 2])
@pytest.mark.parametrize(
    "request_",
    [
        {"do": "send", "command": "Go"},
        {"do": "observe", "event": "Seen"},
        {"do": "state"},
        {"do": "resume"},
        {"do": "log"},
        {"do": "export"},
    ],
    ids=lambda request: request["do"],
)
def test_what_is_about_an_agent_goes_to_who_has_it(process: int, request_: dict[str, Any]) -> None:
    board = both(lambda _: [ok({"done": True})])
    assert board.ask(agent=AGENTS[process], **request_) == [{"v": 1, "ok": {"done": True}}]
    asked = [len(one.asked) for one in board.processes]
    assert asked == ([1, 0] if process == 1 else [0, 1])
    assert board.processes[process - 1].asked == [{"v": 1, "agent": AGENTS[process], **request_}]
    assert board.processes[process - 1].closed == 1


@pytest.mark.parametrize("shard", [0, 1])
def test_shards_and_letters_go_to_who_has_them(shard: int) -> None:
    board = both(lambda _: [ok({})])
    board.ask(do="log", shard=shard)
    board.ask(do="drop", letter=f"{shard}.4.1")
    board.ask(do="retry", letter=f"{shard}.4.1")
    assert len(board.processes[shard].asked) == 3


def test_answer_is_passed_on_as_it_is_also_a_refusal_and_a_stream() -> None:
    refused = write_error(StigmergyError("no"))
    board = Board(lambda _: [refused], lambda _: stream({"n": 1}, {"n": 2}))
    assert board.ask(do="state", agent=AGENTS[1]) == [{"v": 1, "error": "no", "kind": "StigmergyError"}]
    assert [one.get("item") for one in board.ask(do="log", agent=AGENTS[2])] == [{"n": 1}, {"n": 2}, None]


def test_shard_whose_owner_is_down_is_named_with_what_to_do() -> None:
    board = both(lambda asked: stream({}) if asked["do"] == "verify" else [ok({})])
    board.processes[1].is_down = True
    (said,) = board.ask(do="state", agent=AGENTS[2])
    assert said["kind"] == "NotRunning"
    assert "the owner of shard 1 does not answer now" in said["error"]
    assert "a worker must run" in said["error"]
    assert board.ask(do="state", agent=AGENTS[1]) == [{"v": 1, "ok": {}}]
    (said,) = board.ask(do="verify")[-1:]
    assert said["kind"] == "NotRunning"


def test_names_are_told_although_an_owner_is_down() -> None:
    kinds: dict[str, Any] = {"Cart": {"commands": {"Go": []}, "events": {}}}
    board = both(lambda _: [ok({"kinds": kinds, "agents": ["Cart/1"]})])
    assert board.ask(do="names")[0]["ok"] == {"kinds": kinds, "agents": ["Cart/1", "Cart/1"], "missing": []}
    board.processes[0].is_down = True
    (found,) = board.ask(do="names")
    assert (found["ok"]["kinds"], found["ok"]["agents"]) == (kinds, ["Cart/1"])
    assert [one["why"] for one in found["ok"]["missing"]] == ["shard 0 has no owner that answers: nobody is there"]
    board.processes[1].is_down = True
    assert board.ask(do="names")[0]["kind"] == "NotRunning"


@pytest.mark.parametrize("do", ["letters", "log", "claims", "shared", "quarantine"])
def test_what_the_others_say_is_told_and_who_is_missing_with_it(do: str) -> None:
    told = {**ITEMS, "log": entry(1, 0)}[do]
    board = both(lambda _: stream(told))
    board.processes[1].is_down = True
    *items, last = board.ask(do=do)
    marked = {"shard": 0} if do in ("shared", "quarantine") else {}
    assert [one["item"] for one in items] == [{**marked, **told}]
    (missing,) = last["end"].pop("missing")
    assert last["end"] == {"count": 1}
    assert missing["shard"] == 1
    assert missing["why"] == "shard 1 has no owner that answers: nobody is there"
    board.processes[0].is_down = True
    (said,) = board.ask(do=do)
    assert (said["kind"], said["error"]) == ("NotRunning", "nobody is there")


def test_nothing_is_retired_while_somebody_cannot_be_asked() -> None:
    board = both(lambda _: stream(held()))
    board.processes[1].is_down = True
    (said,) = board.ask(do="retire", object="o", replica="aa")
    assert said["kind"] == "NotRunning"
    assert "nothing was retired" in said["error"]
    assert [one["do"] for one in board.processes[0].asked] == ["shared"], "nobody was told to"


def test_what_one_process_has_used_counts_once_for_all_its_shards() -> None:
    """Two shards of a worker tell the same process; another host may have a process of the same number."""
    shards = [status(pid=1, host="one"), status(pid=1, host="one"), status(pid=1, host="two")]
    told = {shard: msgspec.convert(one, StatusReply) for shard, one in enumerate(shards)}
    found = added_status("f", "nats:", told, [], 3)
    assert (found.version, found.up_s) == ("1", max(one.up_s for one in told.values()))
    assert (found.cpu_s, found.memory_peak_bytes, found.agents) == (0.5, 2000, 9)


def claim(read_to: int, *believed: str, resource: str = "dock") -> dict[str, Any]:
    nobody = dict.fromkeys(("holder", "token", "since", "for_s", "offered"))
    beliefs = [
        {"agent": agent, "claim": "c", "holds": False, "token": None, "left_s": 1.0, "renews": False, "asking": True}
        for agent in believed
    ]
    return {"resource": resource, "read_to": read_to, **nobody, "queue": [], "believed": beliefs}


def held(agent: str | None = None) -> dict[str, Any]:
    """A shared object with one replica."""
    replica = {"replica": "aa11", "counter": 1, "agent": agent, "retired": False}
    counts = dict.fromkeys(("live", "live_bytes", "waiting"), 0)
    lists = {"agents": [], "peers": [], "in_step": [], "unheard": [], "replicas_count": 1, "replicas": [replica]}
    return {"object": "o", "digest": "", "diverged": False, **counts, **lists}


ITEMS: dict[str, dict[str, Any]] = {
    "letters": {"letter": "0.1.1", "agent": "A/1", "source": "s", "type": "T", "fields": {}, "error": "e"},
    "claims": claim(7),
    "shared": held(),
    "quarantine": {"key": "aa", "node": None, "object": "o", "replica": None, "why": "w", "since": "s"},
}


def test_claims_are_told_by_who_has_read_furthest_with_what_all_believe() -> None:
    board = Board(
        lambda _: stream(claim(7, "A/1"), claim(7, resource="bay")),
        lambda _: stream(claim(9, "A/2")),
    )
    *items, end = board.ask(do="claims")
    assert [one["item"] for one in items] == [
        claim(7, resource="bay"),
        claim(9, "A/1", "A/2"),
    ]
    assert end["end"] == {"count": 2}


def test_shared_objects_are_listed_with_who_holds_them() -> None:
    none = write_error(ConfigError("this node holds no shared object"))
    board = Board(lambda _: [none], lambda _: stream(held()))
    *items, _ = board.ask(do="shared", object="o")
    assert [one["item"] for one in items] == [{"shard": 1, **held()}]
    (said,) = both(lambda _: [none]).ask(do="shared", object="o")
    assert said["error"] == "this node holds no shared object"


def test_a_key_is_lifted_wherever_it_is_shut_out() -> None:
    none = write_error(ConfigError("no such key"))
    board = Board(lambda _: [none], lambda _: [ok({"key": "aa", "lifted": True})])
    assert board.ask(do="lift", key="aa")[0]["ok"] == {"key": "aa", "lifted": True}
    assert both(lambda _: [none]).ask(do="lift", key="aa")[0]["error"] == "no such key"


def test_a_replica_of_an_agent_anywhere_is_not_retired() -> None:
    def holding(agent: str | None) -> Answer:
        done = {"object": "o", "replica": "aa11", "retired": True}
        return lambda asked: stream(held(agent)) if asked["do"] == "shared" else [ok(done)]

    board = Board(holding(None), holding("A/1"))
    (said,) = board.ask(do="retire", object="o", replica="aa")
    assert "is that of A/1, and not dead" in said["error"]
    assert [[one["do"] for one in process.asked] for process in board.processes] == [["shared"], ["shared"]]
    (done,) = Board(holding(None), holding(None)).ask(do="retire", object="o", replica="aa")
    assert done["ok"]["retired"] is True


def test_a_profile_is_of_the_worker_that_is_named_or_of_the_only_one() -> None:
    found = {"fleet": "f", "process": "worker b-2", "seconds": 1.0, "loop_cpu_s": 0.1, "cpu_s": 0.2, "events": 3}
    found |= {"phases": [], "handlers": [], "flash": [], "contents": [], "source": "counters", "why": "", "stacks": {}}

    def owner(name: str, pid: int) -> Answer:
        def answer(request: dict[str, Any]) -> list[bytes]:
            if request["do"] == "status":
                return [ok(status(pid=pid))]
            named = request.get("worker", "") in ("", name)
            return [ok(found) if named else write_error(ConfigError(f"this is worker {name}"))]

        return answer

    two = Board(owner("a-1", 1), owner("b-2", 2))
    assert "which worker?" in two.ask(do="profile")[0]["error"]
    assert two.ask(do="profile", worker="b-2")[0]["ok"]["process"] == "worker b-2"
    assert two.ask(do="profile", worker="c")[0]["error"] == "this is worker a-1; this is worker b-2"
    one = Board(owner("a-1", 1), owner("a-1", 1))
    assert one.ask(do="profile")[0]["ok"]["events"] == 3
    assert [len(process.asked) for process in one.processes] == [2, 1], "one of its shards is asked for the profile"


def test_status_adds_up_and_remembers_one_that_is_down() -> None:
    board = Board(lambda _: [ok(status(pid=7))], lambda _: [ok(status(pid=8))])
    (before,) = board.ask(do="status")
    found = before["ok"]
    assert (found["agents"], found["cpu_s"], found["counters"]) == (6, 0.5, {"accepted": 4})
    assert (found["pid"], found["journal"], found["recovered"]["events"]) == (None, "nats:all", 4)
    assert [(one["process"], one["first_shard"], one["last_shard"]) for one in found["processes"]] == [
        (1, 0, 0),
        (2, 1, 1),
    ]
    assert len(found["signers"]) == 1
    board.processes[1].is_down = True
    (after,) = board.ask(do="status")
    assert after["ok"]["agents"] == 6
    (trouble,) = after["ok"]["troubles"]
    assert "shard 1 has no owner that answers" in trouble


def test_a_question_for_agents_that_is_refused_is_no_empty_page() -> None:
    refused = write_reply(protocol.refusal(ConfigError("cursor 'zz': give the `next` of the page before")))
    (found,) = both(lambda _: [refused]).ask(do="agents", after="zz")
    assert "give the `next`" in found["error"]


def test_status_shows_the_link_of_an_owner_that_is_cut_off() -> None:
    up = {"state": "up", "why": "", "owed": 2, "tells": 1, "members": 3}
    cut = {"state": "local-only", "why": "broker gone", "owed": 5, "tells": 2, "members": 1}
    board = Board(lambda _: [ok(status(pid=7, link=up))], lambda _: [ok(status(pid=8, link=cut))])
    (found,) = board.ask(do="status")
    assert found["ok"]["link"] == {**cut, "owed": 7, "tells": 3}
    (found,) = both(lambda _: [ok(status(pid=7, link=up))]).ask(do="status")
    assert found["ok"]["link"] == {**up, "owed": 4, "tells": 2}


def test_status_adds_up_what_shards_see_of_a_ledger() -> None:
    near = {"ledger": "incidents", "why": "", "position": 9, "entries": 8, "waiting": 1, "behind": 0}
    late = {"ledger": "incidents", "why": "no answer for 4 s", "position": 7, "entries": 6, "waiting": 2, "behind": 3}
    other = {**near, "ledger": "plans"}
    board = Board(lambda _: [ok(status(ledgers=[near]))], lambda _: [ok(status(ledgers=[late, other]))])
    (found,) = board.ask(do="status")
    assert found["ok"]["ledgers"] == [{**near, "why": "no answer for 4 s", "waiting": 3, "behind": 3}, other]
    (found,) = both(lambda _: [ok(status())]).ask(do="status")
    assert "ledgers" not in found["ok"]


def test_status_before_anybody_has_answered() -> None:
    board = both(lambda _: [])
    for process in board.processes:
        process.is_down = True
    (found,) = board.ask(do="status")
    assert found["ok"]["agents"] == 0
    assert [one["pid"] for one in found["ok"]["processes"]] == [None, None]


def entry(time_ns: int, shard: int) -> dict[str, Any]:
    told = {"type": "T@1", "fields": {}, "cause": {"source": "s", "command": "", "command_id": ""}}
    place = {"kind": "event", "shard": shard, "position": time_ns, "index": 0, "time": "t", "time_ns": time_ns}
    return {**place, "agent": "A/1", **told, "effects": [], "refused": None}


def test_log_is_cut_to_what_was_asked_at_the_right_end() -> None:
    board = Board(
        lambda _: stream(entry(1, 0), entry(4, 0)),
        lambda _: stream(entry(2, 1), entry(3, 1)),
    )
    times = [one["item"]["time_ns"] for one in board.ask(do="log", limit=3)[:-1]]
    assert times == [2, 3, 4]
    times = [one["item"]["time_ns"] for one in board.ask(do="log", limit=3, first=1)[:-1]]
    assert times == [1, 2, 3]


def test_export_is_in_the_order_of_time_and_says_how_far_it_is() -> None:
    far = {"commits": 0, "of": 5, "fleet": "f", "incarnation": 1}
    board = Board(
        lambda _: stream(far, entry(1, 0), entry(4, 0)),
        lambda _: stream(far, entry(2, 1), {**far, "commits": 3}, entry(3, 1)),
    )
    lines = board.ask(do="export")
    items = [line["item"] for line in lines[:-1]]
    assert [one["time_ns"] for one in items if "of" not in one] == [1, 2, 3, 4]
    assert [(one["commits"], one["of"]) for one in items if "of" in one] == [(0, 10), (3, 10)]
    assert lines[-1]["end"] == {"count": 4}


def test_export_that_breaks_on_the_way_says_so() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield item(entry(1, 0))
        raise NotRunning("it is gone")

    async def main() -> list[Any]:
        return [line async for line in MergedEntries([broken()], ExportRequest())]

    with pytest.raises(NotRunning, match="it is gone"):
        asyncio.run(main())


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "holds"},
        {"do": "hold", "reason": "r", "by": "b"},
        {"do": "unhold", "hold": 1, "reason": "r", "by": "b"},
        {"do": "flight"},
        {"do": "revoke", "public_key": "aa", "last_position": 3},
    ],
    ids=lambda request: request["do"],
)
def test_what_cannot_be_asked_of_all_is_refused(request_: dict[str, Any]) -> None:
    board = both(lambda _: [ok({})])
    (said,) = board.ask(**request_)
    assert said["kind"] == "ConfigError"
    assert "each shard has a log of its own" in said["error"]
    assert not any(process.asked for process in board.processes)


def test_signers_are_changed_in_all_and_nonsense_is_refused() -> None:
    enrolled, revoked = {"public_key": "aa", "enrolled": True}, {"public_key": "aa", "revoked_after": 7}
    board = both(lambda asked: [ok(enrolled if asked["do"] == "enrol" else revoked)])
    assert board.ask(do="enrol", public_key="aa")[0]["ok"] == enrolled
    assert board.ask(do="revoke", public_key="aa")[0]["ok"] == revoked
    assert [len(process.asked) for process in board.processes] == [2, 2]
    for request in ({"do": "log", "shard": 9}, {"do": "drop", "letter": "9.1.1"}, {"do": "drop", "letter": "x"}):
        assert board.ask(**request)[0]["kind"] == "ConfigError"
    assert board.ask(do="nothing")[0]["kind"] == "Malformed"
    (said,) = board.ask(do="stop")
    assert "workers are stopped where they run" in said["error"]
