"""The engine: fails closed, and rules as OPA does."""

import json
import random
from pathlib import Path

import pytest

from stigmergy.base.errors import PolicyFailed, PolicyRefused
from stigmergy.policy.cases import filled_document
from stigmergy.policy.engine import PolicyAnswer
from stigmergy.policy.rego import RegoPolicy
from tests.policy.drones import DATA, REGO
from tests.policy.oracle import opa_rules

HEAD = "package stigmergy\n\nimport rego.v1\n\n"


def asked(rego: str, document: object) -> PolicyAnswer:
    return RegoPolicy((("a.rego", rego),)).ask(json.dumps(document).encode())


@pytest.mark.parametrize(
    "rule",
    [
        "default allow := false",
        "allow if input.x == 2",
        'allow := "true" if input.x == 1',
        "allow := 1",
        "allow := [true]",
        "allow := null",
        "default allow := false\n\nallow if input.missing.field == 1",
        'allow if input.x > to_number("a")',
        "reason := 7",
    ],
)
def test_only_a_plain_true_allows(rule: str) -> None:
    assert not asked(HEAD + rule, {"x": 1}).allowed
    assert asked(HEAD + "allow if input.x == 1", {"x": 1}).allowed


def test_a_rule_that_contradicts_itself_gives_no_ruling() -> None:
    with pytest.raises(PolicyFailed, match="contradicts itself"):
        asked(HEAD + "allow := true if input.x == 1\n\nallow := false if input.x == 1", {"x": 1})


@pytest.mark.parametrize("document", [b"", b"{", b"\xff", b'{"x": }'])
def test_what_is_no_document_gives_no_ruling(document: bytes) -> None:
    policy = RegoPolicy((("a.rego", HEAD + "allow if input.x == 1"),))
    with pytest.raises(PolicyFailed):
        policy.ask(document)
    assert policy.ask(b'{"x": 1}').allowed


@pytest.mark.parametrize(
    ("rego", "data", "why"),
    [
        (HEAD + "allow := {", "", "does not compile"),
        ("package other\n\nallow := true\n", "", "no module has `package stigmergy`"),
        (HEAD + "allow := true", "[1]", "a JSON object"),
        (HEAD + "allow := true", "{", "no JSON"),
        (HEAD + "allow := true", '{"stigmergy": {"allow": true}}', "would hide the rules"),
    ],
)
def test_a_policy_that_cannot_rule_is_refused_when_it_is_loaded(rego: str, data: str, why: str) -> None:
    with pytest.raises(PolicyRefused, match=why):
        RegoPolicy((("a.rego", rego),), data)


def test_texts_are_compared_as_they_are() -> None:
    policy = RegoPolicy((("a.rego", HEAD + "allow if input.x == data.t"),), json.dumps({"t": 'a"b'}))
    assert policy.ask(json.dumps({"x": 'a"b'}).encode()).allowed
    assert not policy.ask(json.dumps({"x": 'a" || true || "b'}).encode()).allowed


RULES = [
    REGO,
    HEAD + 'default allow := false\n\nallow if startswith(input.sender.token, "ops-")\n\nreason := "who are you?"\n',
    HEAD + "allow if {\n\tsome one in input.state.tags\n\tone == input.fields.mission\n}\n",
    HEAD + "allow if count(input.state.tags) > 1\n\nallow if input.state.battery * 2 > 100\n",
    HEAD + 'default allow := false\n\nallow if not blocked\n\nblocked if input.sender.how == "bus"\n\n'
    'reason := concat(" ", [input.sender.how, "is blocked"]) if blocked\n',
    HEAD + "allow if {\n\tevery one in input.state.tags { count(one) == 2 }\n}\n",
]


NEGATIONS = [
    "allow if not input.fields.mission in data.forbidden",
    "allow if not data.forbidden[input.fields.mission]",
    'allow if not startswith(input.fields.mission, "M")',
    'allow if not startswith(\n\tinput.fields.mission,\n\t"M",\n)',
    "allow if not input.fields.mission in data.missing",
    'name := input.fields.mission\n\nallow if not startswith(name, "M")',
    "allow if { not blocked }\n\nblocked if input.fields.mission in data.forbidden",
    'allow if not input.fields.mission == "M13" # not f(input.x)',
    "allow if {\n\tmission := input.fields.mission\n\tnot mission in data.forbidden\n}",
    'allow if {\n\tmission := input.fields.mission\n\tnot startswith(mission, "not input(x)")\n}',
    "allow if not input.fields.mission",
]


@pytest.mark.parametrize("number", range(len(NEGATIONS)))
def test_a_negation_that_opa_reads_otherwise_is_refused(number: int, tmp_path: Path) -> None:
    rego = HEAD + NEGATIONS[number] + "\n"
    documents = [filled_document({"fields": one}) for one in ({}, {"mission": "M1"}, {"mission": "M13"})]
    if number < 6:
        with pytest.raises(PolicyRefused, match=r"line \d+: `not` before a call with (input|data|name)"):
            RegoPolicy((("policy.rego", rego),), DATA)
        return
    policy = RegoPolicy((("policy.rego", rego),), DATA)
    ours = [(answer.allowed, answer.reason) for answer in map(policy.ask, documents)]
    assert ours == opa_rules(tmp_path, rego, DATA, documents)


@pytest.mark.parametrize("number", range(len(RULES)))
def test_our_engine_rules_as_opa_does(number: int, tmp_path: Path) -> None:
    chance = random.Random(number)
    documents: list[bytes] = []
    for _ in range(200):
        state = {"battery": chance.choice([0, 19.9, 20, 51, 100.0]), "tags": chance.sample(["M1", "M2", "é", "abc"], 2)}
        sender = {"how": chance.choice(["bus", "http", "program"]), "token": chance.choice(["", "ops-1", "ann"])}
        given = {
            "kind": chance.choice(["command", "tell", "enrolment"]),
            "message": chance.choice(["StartMission", "Charge", "Erase", "WeatherTold"]),
            "fields": chance.choice([{}, {"mission": "M1"}, {"mission": "M13"}, {"mission": None}]),
            "state": chance.choice([state, None, {}]),
            "sender": sender | ({"fleet": "ground"} if chance.random() < 0.5 else {}),
        }
        documents.append(filled_document(given))
    policy = RegoPolicy((("policy.rego", RULES[number]),), DATA)
    ours = [(answer.allowed, answer.reason) for answer in map(policy.ask, documents)]
    assert ours == opa_rules(tmp_path, RULES[number], DATA, documents)
    assert len({allowed for allowed, _ in ours}) == 2
