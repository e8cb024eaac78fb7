"""The chain behind an event: from what was sensed over the question and the answer to decisions and what followed."""

import base64
from typing import Any

from stigmergy.agents.effects import MODELS
from stigmergy.audit.chain import chain_of
from stigmergy.audit.listing import Cause, LogEntry, Owing
from stigmergy.models.model import digest_of_inputs


def entry(position: int, index: int, type: str, fields: Any, source: str, *effects: Owing) -> LogEntry:
    return LogEntry("event", 0, position, index, "", 0, "GasSensor/a", type, fields, Cause(source), list(effects))


def question(row: bytes) -> Owing:
    fields = {"model": "gas", "inputs": base64.b64encode(row).decode()}
    return Owing(MODELS, 1, "stigmergy.ModelAsked@1", fields)


def source(row: bytes, version: str = "1.2.0") -> dict[str, Any]:
    return {
        "model": "gas",
        "version": version,
        "inputs": base64.b64encode(digest_of_inputs(row)).decode(),
        "arm": "canary",
    }


def answer(position: int, row: bytes, version: str = "1.2.0") -> LogEntry:
    fields = {"answer": {"co": 0.9}, "confidence": 0.9, "source": source(row, version)}
    return entry(position, 0, "stigmergy.Inferred.gas@1", fields, "models")


A, B = b"\0\0\x80\x3f", b"\0\0\0\x40"
CLOSE = Owing("actuators", 1, "CloseValve@1", {})
SENSED_A, SENSED_B = (
    entry(1, 0, "Sampled@1", {"co": 1.0}, "local", question(A)),
    entry(2, 0, "Sampled@1", {"co": 2.0}, "local", question(B)),
)
DECIDED = entry(4, 1, "GasSuspected@1", {}, "models", CLOSE)
OTHER = entry(3, 1, "Noted@1", {}, "models")
LATER = entry(9, 0, "Confirmed@1", {"because": source(B)}, "local")
LOG = [SENSED_A, SENSED_B, answer(3, A), OTHER, answer(4, B), DECIDED, entry(5, 0, "Moved@1", {}, "models"), LATER]


def test_every_part_of_a_chain_finds_the_whole_of_it() -> None:
    for target in (SENSED_B, LOG[4], DECIDED, LATER):
        found = chain_of(LOG, target)
        assert found.sensed is SENSED_B
        assert found.inferred is LOG[4]
        assert found.decided == [DECIDED, LATER]
        assert list(found.done) == [CLOSE]
        assert found.asked is not None
        assert found.source is not None
        assert (found.asked.model, found.asked.numbers, found.source.arm) == ("gas", 1, "canary")
    assert chain_of(LOG, OTHER).sensed is SENSED_A


def test_repeated_inputs_are_paired_in_their_order() -> None:
    again = entry(6, 0, "Sampled@1", {"co": 1.0}, "local", question(A))
    log = [*LOG, again, answer(10, A, "1.3.0")]
    first, second = chain_of(log, SENSED_A), chain_of(log, again)
    assert first.inferred is LOG[2]
    assert second.inferred is log[-1]
    assert second.source is not None
    assert second.source.version == "1.3.0"


def test_what_no_model_had_to_do_with_and_a_question_without_an_answer() -> None:
    assert chain_of(LOG, LOG[6]).inferred is None
    alone = chain_of([SENSED_A], SENSED_A)
    assert alone.sensed is SENSED_A
    assert alone.inferred is None
    assert alone.asked is not None
    cut = chain_of([LOG[2], OTHER], OTHER)
    assert cut.sensed is None, "the log begins behind the question"
    assert cut.inferred is LOG[2]
