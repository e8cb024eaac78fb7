"""Commands that a shard sends on: owed until they are answered, once under each id, whatever is repeated."""

from __future__ import annotations

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.assignment import Assignment
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import SECOND_NS, Command, Event
from stigmergy.shard.forwarding import FORWARD, PER_AGENT_MAX, read_forwarded
from stigmergy.shard.inputs import Accepted, Ask, CommandAnswered, Refused, Travel
from tests.shard.shards import Probe


class Fly(Command, expires_s=5, supersedes=True):
    number: int = 0


class Flown(Event):
    number: int


class Drone(Agent):
    count: int = 0

    @decide
    def fly(self, command: Fly) -> Events:
        yield Flown(number=command.number)

    @evolve
    def flown(self, event: Flown) -> None:
        self.count += 1


AWAY = Travel(elsewhere=True, keep_ns=60 * SECOND_NS)


def ask(command_id: str = "a", number: int = 0, travel: Travel = AWAY) -> Ask:
    return Ask("Drone/1", command_id, encode(Fly(number=number)), client="c", travel=travel)


def test_a_command_is_owed_until_it_is_answered_and_then_its_answer_is_remembered() -> None:
    probe = Probe(Drone)
    commit = probe.take(ask())
    (owed,) = commit.owed
    one = read_forwarded(owed)
    assert (owed.sink, owed.agent, one.command_id, one.replaces) == (FORWARD, "Drone/1", "a", "Fly@1")
    assert one.expires_ns == one.asked_ns + 5 * SECOND_NS, "as its class says"
    assert (commit.answers, probe.state.agents) == ([], {}), "nobody lives here because of it"
    # Asked again it is owed once; whoever asks gets the answer when it is there.
    assert probe.step(ask()).repeats == []
    assert probe.shard.seal() is None
    probe.step(CommandAnswered(1, None))
    ready = probe.seal()
    assert ready.verdicts == [(("Drone/1", "a", encode(Fly(number=0))), Accepted(2))]
    assert list(probe.state.outbox.owed()) == []
    (repeat,) = probe.step(ask()).repeats
    assert repeat[1] == Accepted(2)
    (other,) = probe.step(ask(number=7)).repeats
    assert isinstance(other[1], Refused)
    assert "another command had the id" in other[1].reason


def test_an_answer_counts_once() -> None:
    probe = Probe(Drone)
    probe.take(ask())
    probe.take(CommandAnswered(1, "no"))
    probe.step(CommandAnswered(1, None))
    assert probe.shard.seal() is None
    assert probe.state.answers.get("Drone/1", "a").refused == "no"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("travel", "why"),
    [
        (Travel(expires_ns=99 * SECOND_NS, hops=1), "expired: it was to be decided by 1970-01-01T00:01:39"),
        (Travel(superseded_by="b", hops=1), "superseded by the command 'b'"),
        (Travel(refused="nobody runs it", hops=1, elsewhere=True), "not sent on: nobody runs it"),
    ],
)
def test_what_came_too_late_is_refused_under_its_id_and_a_late_copy_too(travel: Travel, why: str) -> None:
    probe = Probe(Drone)
    probe.step(ask(travel=travel))
    ((_, verdict),) = probe.seal().verdicts
    assert isinstance(verdict, Refused)
    assert verdict.reason.startswith(why)
    # A copy of it that says nothing of that, from a broker for instance, is not decided either.
    (repeat,) = probe.step(ask(travel=Travel(hops=1))).repeats
    assert repeat[1] == verdict
    assert probe.state.agents == {}


def test_in_time_it_is_decided() -> None:
    probe = Probe(Drone)
    probe.take(ask(travel=Travel(expires_ns=101 * SECOND_NS, hops=2)))
    assert probe.agent("Drone/1").count == 1


def test_a_node_on_the_way_passes_on_what_it_cannot_read() -> None:
    probe = Probe(Drone)
    travel = Travel(elsewhere=True, expires_ns=200 * SECOND_NS, hops=1, origin="x/y", replaces="New@2", came_by="above")
    (owed,) = probe.take(Ask("Ship/1", "a", encode({"type": "New@2"}), travel=travel)).owed
    one = read_forwarded(owed)
    assert (one.command, one.origin, one.replaces, one.hops) == (encode({"type": "New@2"}), "x/y", "New@2", 1)
    # Where it is given, what the fleet does not know is refused at once.
    probe.step(Ask("Drone/1", "b", encode({"type": "New@2"}), travel=AWAY))
    ((_, verdict),) = probe.seal().verdicts
    assert isinstance(verdict, Refused)


def test_the_step_itself_takes_nothing_for_an_agent_that_runs_elsewhere() -> None:
    """Whatever let it through: another agent of that name would decide here."""
    probe = Probe(Drone)
    probe.state.assign(Assignment(["Drone/2"], probe.plans))
    probe.step(ask(travel=Travel()))
    ((_, verdict),) = probe.seal().verdicts
    assert isinstance(verdict, Refused)
    probe.observe("Drone/1", Flown(number=1))
    assert [letter.agent for letter in probe.state.letters.all()] == ["Drone/1"]
    assert probe.state.agents == {}


def test_commands_on_their_way_are_bounded() -> None:
    probe = Probe(Drone)
    for number in range(PER_AGENT_MAX):
        probe.take(ask(f"{number}", number))
    (repeat,) = probe.step(ask("one more")).repeats
    assert isinstance(repeat[1], Refused)
    assert repeat[1].reason.startswith("overloaded: 100 commands for Drone/1")
    probe.take(CommandAnswered(1, None))
    probe.take(ask("one more"))
