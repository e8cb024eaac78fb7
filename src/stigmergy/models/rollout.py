"""The rules of a rollout: which version of a model answers whom, and when the new one is promoted or rolled back. Pure.

    shadow     every question is asked of both; the old answer counts, the new one is compared with it
    canary     a fixed share of the agents gets the new version's answers
    promoted   everybody has the new version
    rolled back   everybody has the old one

A node needs one signed record of each model, `VersionRecord`. Its revision only grows; a node never goes back to an
older one, whoever hands it over. Counts are sums since a stage began, told again and again under the name of their
source: of two reports of one source the larger number counts, so that none is added twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.messages import is_number
from stigmergy.base.errors import ConfigError, ModelRefused
from stigmergy.base.trust import Signer, Verifier
from stigmergy.models.bundle import version_key

Stage = Literal["", "shadow", "canary", "promoted", "rolled back"]
STABLE: Final = "stable"
CANARY: Final = "canary"
"""The arms that an answer may come from."""
RECORD_BYTES_MAX = 16 * 1024
_TIME_S_MAX = 366 * 86_400.0
_VERSIONS, _COUNTS = b"stigmergy.model.versions@1", b"stigmergy.model.counts@1"
_SCALE = 2.0**64


class RolloutRule(Struct, frozen=True, forbid_unknown_fields=True):
    """When a new version is good enough, and when it is too bad. Shares are from 0 to 1."""

    shadow_s: float = 3_600.0
    """So long both versions are asked; 0: no shadow."""
    canary: float = 0.05
    """The share of the agents that the new version answers first."""
    canary_s: float = 86_400.0
    """So long they are alone with it; 0: no canary."""
    asks_min: int = 1_000
    """With fewer answers of the new version a stage does not end well; disagreement and latency are not judged."""
    judged_min: int = 20
    """With fewer answers that agents have judged, or that have failed, nothing is concluded from them."""
    false_positives_max: float = 0.02
    """The share of wrong ones among its judged answers may be so much above that of the old version."""
    failures_max: float = 0.01
    """The same for answers that the fallback had to give."""
    disagreement_max: float = 0.05
    """In the shadow so many of its answers may differ from the old ones."""
    latency_ratio_max: float = 1.5
    """Its mean latency may be so many times that of the old version."""
    patience_s: float = 7 * 86_400.0
    """A stage that has too few answers so long after its time is rolled back."""
    report_s: float = 10.0
    """How often nodes tell what they have counted."""

    def __post_init__(self) -> None:
        for name in ("shadow_s", "canary_s", "patience_s", "report_s"):
            value: object = getattr(self, name)
            if not is_number(value) or not (0 if name != "report_s" else 0.01) <= value <= _TIME_S_MAX:  # type: ignore[operator]
                raise ConfigError(f"RolloutRule({name}={value!r}): give seconds, a year at most")
        for name in ("canary", "false_positives_max", "failures_max", "disagreement_max"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= 1:  # type: ignore[operator]
                raise ConfigError(f"RolloutRule({name}={value!r}): give a share from 0 to 1")
        for name in ("asks_min", "judged_min"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"RolloutRule({name}={getattr(self, name)!r}): give a whole number from 1 upward")
        if not is_number(self.latency_ratio_max) or not 0 < self.latency_ratio_max < math.inf:
            raise ConfigError(f"RolloutRule(latency_ratio_max={self.latency_ratio_max!r}): give more than 0")


class VersionCounts(Struct, frozen=True):
    """What was seen of one version since a stage began."""

    asks: int = 0
    failed: int = 0
    """Those that the fallback had to answer."""
    compared: int = 0
    differed: int = 0
    """In the shadow: answers beside those of the old version, and how many were not alike."""
    latency_s: float = 0.0
    """Of all answers together that the version itself has given."""
    judged: int = 0
    wrong: int = 0
    """Answers that agents have judged since, and how many were wrong."""

    @property
    def answered(self) -> int:
        """Answers of the version itself."""
        return self.asks - self.failed

    def plus(self, other: VersionCounts) -> VersionCounts:
        """Both together: of two sources."""
        return VersionCounts(*(a + b for a, b in zip(_numbers(self), _numbers(other), strict=True)))  # type: ignore[arg-type]

    def upto(self, other: VersionCounts) -> VersionCounts:
        """The later one of two reports of one source, in whatever order they come."""
        return VersionCounts(*(max(a, b) for a, b in zip(_numbers(self), _numbers(other), strict=True)))  # type: ignore[arg-type]


def _numbers(counts: VersionCounts) -> tuple[float, ...]:
    return msgspec.structs.astuple(counts)


def total(counts: Iterable[VersionCounts]) -> VersionCounts:
    """The sum of all sources."""
    found = VersionCounts()
    for one in counts:
        found = found.plus(one)
    return found


class Verdict(Struct, frozen=True):
    """What the rule says of a stage."""

    then: Literal["wait", "go on", "roll back"]
    reason: str = ""


def judge(
    rule: RolloutRule,
    stage: Stage,
    stable: VersionCounts,
    candidate: VersionCounts,
    *,
    is_over: bool = False,
    is_late: bool = False,
) -> Verdict:
    """Whether a stage goes on, ends well, or ends in a rollback. `is_over`: its time has passed; `is_late`: so has the
    patience behind it."""
    if too_bad := _too_bad(rule, stage, stable, candidate):
        return Verdict("roll back", too_bad)
    enough = candidate.compared if stage == "shadow" else candidate.asks
    if is_over and enough >= rule.asks_min:
        return Verdict("go on", f"{enough:,} answers within the rule")
    if is_late:
        return Verdict("roll back", f"only {enough:,} answers in the {stage} stage, asks_min is {rule.asks_min:,}")
    return Verdict("wait", f"{enough:,} of {rule.asks_min:,} answers")


def _too_bad(rule: RolloutRule, stage: Stage, stable: VersionCounts, candidate: VersionCounts) -> str:
    # One bad answer of the old version must not excuse all of the new one's.
    enough = stable.judged >= rule.judged_min
    wrong, wrong_before = _share(candidate.wrong, candidate.judged), _share(stable.wrong, stable.judged) * enough
    if candidate.judged >= rule.judged_min and wrong - wrong_before > rule.false_positives_max:
        what = "wrong" if stage == "shadow" else "false positives"
        return (
            f"{wrong:.1%} of its {candidate.judged:,} judged answers are {what}, {wrong_before:.1%} of the "
            f"old version's; false_positives_max is {rule.false_positives_max:.1%} above"
        )
    failed, failed_before = _share(candidate.failed, candidate.asks), _share(stable.failed, stable.asks)
    if candidate.asks >= rule.judged_min and failed - failed_before > rule.failures_max:
        return (
            f"the fallback answered {failed:.1%} of its {candidate.asks:,} questions, {failed_before:.1%} of the old "
            f"version's; failures_max is {rule.failures_max:.1%} above"
        )
    differed = _share(candidate.differed, candidate.compared)
    if stage == "shadow" and candidate.compared >= rule.asks_min and differed > rule.disagreement_max:
        return (
            f"{differed:.1%} of {candidate.compared:,} answers differ from the old version's; disagreement_max is "
            f"{rule.disagreement_max:.1%}"
        )
    if min(candidate.answered, stable.answered) >= rule.asks_min:
        mean_s, before_s = candidate.latency_s / candidate.answered, stable.latency_s / stable.answered
        if mean_s > rule.latency_ratio_max * before_s:
            return (
                f"it takes {mean_s * 1e3:.2f} ms on average, the old version {before_s * 1e3:.2f} ms; "
                f"latency_ratio_max is {rule.latency_ratio_max:g}"
            )
    return ""


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def in_canary(rollout: str, agent: str, share: float) -> bool:
    """Whether an agent is among the first: the same on every node and after every restart, other agents in every
    rollout."""
    name = f"{rollout}\0{agent}".encode()
    return int.from_bytes(blake3(name).digest(length=8), "big") / _SCALE < share


class VersionRecord(Struct, frozen=True):
    """What every node has to know of a model."""

    fleet: str
    model: str
    revision: int
    """Grows with each step of a rollout."""
    stable: str
    candidate: str = ""
    """Empty while there is no rollout."""
    stage: Stage = ""
    rollout: str = ""
    """Names this rollout: the canary is drawn by it."""
    canary: float = 0.0
    before: str = ""
    """What was stable before: where a node lacks the stable version, this one answers."""
    report_s: float = 10.0

    def arm_of(self, agent: str) -> str:
        """Which arm an agent is in."""
        chosen = self.stage == "canary" and in_canary(self.rollout, agent, self.canary)
        return CANARY if chosen else STABLE if self.candidate else ""


class CountsReport(Struct, frozen=True):
    """What a node tells the one with the rollout: what it has counted since a revision."""

    fleet: str
    model: str
    source: str
    revision: int
    stable: VersionCounts
    candidate: VersionCounts


class _Signed(Struct, array_like=True, frozen=True):
    record: bytes
    algorithm: int
    key: bytes
    signature: bytes


_encode = msgspec.msgpack.Encoder().encode
_record_decoder = msgspec.msgpack.Decoder(VersionRecord)
_report_decoder = msgspec.msgpack.Decoder(CountsReport)
_signed_decoder = msgspec.msgpack.Decoder(_Signed)


def write_record(record: VersionRecord, signer: Signer) -> bytes:
    """A record as it is kept in a store."""
    return _write(_VERSIONS, record, signer)


def read_record(
    data: bytes, fleet: str, model: str, trusted: Sequence[bytes], verifier: Verifier, revision_min: int = 0
) -> VersionRecord:
    """The record, if a trusted key has signed it and it is no older than what was seen. Raises ModelRefused."""
    where = f"the versions of {model}"
    try:
        record = _record_decoder.decode(_opened(_VERSIONS, where, data, trusted, verifier))
        for version in filter(None, (record.stable, record.candidate, record.before)):
            version_key(version)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelRefused(f"{where}: cannot be read ({error}); the node with its rollout writes it anew") from None
    _check_about(where, record, fleet, model)
    if record.revision < revision_min:
        raise ModelRefused(
            f"{where}: revision {record.revision} is older than {revision_min}, which was here; it is not gone back to"
        )
    return record


def write_counts(report: CountsReport, signer: Signer) -> bytes:
    """Counts as they are kept in a store."""
    return _write(_COUNTS, report, signer)


def read_counts(data: bytes, fleet: str, model: str, trusted: Sequence[bytes], verifier: Verifier) -> CountsReport:
    """The counts, if a trusted key has signed them: they promote and roll back. Raises ModelRefused."""
    where = f"counts of {model}"
    try:
        report = _report_decoder.decode(_opened(_COUNTS, where, data, trusted, verifier))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelRefused(
            f"{where}: not signed, or damaged ({error}); update the node that writes them, or take its right to"
        ) from None
    _check_about(where, report, fleet, model)
    return report


def _write(domain: bytes, value: VersionRecord | CountsReport, signer: Signer) -> bytes:
    body = _encode(value)
    return _encode(_Signed(body, signer.algorithm, signer.public_key, signer.sign(_encode((domain, body)))))


def _opened(domain: bytes, where: str, data: bytes, trusted: Sequence[bytes], verifier: Verifier) -> bytes:
    """What a trusted key has signed for this purpose. Raises ModelRefused, and what msgspec raises."""
    signed = _signed_decoder.decode(data[:RECORD_BYTES_MAX])
    key = signed.key
    if key not in trusted:
        raise ModelRefused(
            f"{where}: signed by {key.hex()[:64]}, which is not trusted here; add it to model_keys or peers"
        )
    if not verifier.verify(signed.algorithm, key, _encode((domain, signed.record)), signed.signature):
        raise ModelRefused(f"{where}: damaged or forged, the signature does not cover this record")
    return signed.record


def _check_about(where: str, value: VersionRecord | CountsReport, fleet: str, model: str) -> None:
    if (value.fleet, value.model) != (fleet, model):
        raise ModelRefused(f"{where}: this is a record of {value.model!r} in the fleet {value.fleet!r}; it was moved")
