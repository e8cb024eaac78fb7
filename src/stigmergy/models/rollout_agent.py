"""The agent of a rollout: one for each model, named like it. Its log has every step of every rollout, and why.

    fleet = Fleet("city", agents=[GasSensor, ModelRollout])
    await live.send("ModelRollout/gas-alarm", BeginRollout(version="1.3.0", stable="1.2.0", rule=RolloutRule()))

Nodes tell it what they count, agents which answers were right; the rule decides when enough is known, and people can
decide before. What follows for nodes is in its state; `models.versions` writes that into the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import field

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.effects import Effects, Events, Tell, Timer, Woken
from stigmergy.agents.messages import Command, Event
from stigmergy.base.errors import ModelRefused
from stigmergy.models.bundle import version_key
from stigmergy.models.rollout import CANARY, STABLE, RolloutRule, Stage, VersionCounts, VersionRecord, judge, total

KIND = "ModelRollout"
SOURCES_COUNT_MAX = 4_096
"""Sources of counts in one stage: nodes, and each of their starts. Of further ones nothing is taken."""
SOURCE_CHARS_MAX = 200
JUDGED_AGENTS_COUNT_MAX = 4_096
"""Agents whose answers are judged in one stage. Of further ones nothing is taken: these are enough to judge by."""
JUDGED_EACH_COUNT_MAX = 8
"""Answers of one agent that are remembered as judged, the newest. Older ones than these are not counted any more."""
PLACE_COUNT = 3
"""A place in a log: its incarnation, the position, and the number there."""
AGENT_CHARS_MAX = 1_024


class BeginRollout(Command, name="stigmergy.BeginRollout"):
    """Begins to roll a version out. `stable` is what runs now; it is known after the first rollout."""

    version: str
    stable: str = ""
    rule: RolloutRule = RolloutRule()


class PromoteModel(Command, name="stigmergy.PromoteModel"):
    """Gives the new version to everybody now."""

    by: str = ""


class RollBackModel(Command, name="stigmergy.RollBackModel"):
    """Takes the new version back now; after a promotion, the version that was promoted."""

    by: str = ""
    reason: str = ""


class PauseRollout(Command, name="stigmergy.PauseRollout"):
    """Leaves everything as it is: the rule decides nothing until the rollout is resumed."""

    by: str = ""


class ResumeRollout(Command, name="stigmergy.ResumeRollout"):
    """Lets the rule decide again."""

    by: str = ""


class AnswerJudged(Event, name="stigmergy.AnswerJudged", omit_defaults=True):
    """An agent has found out whether an answer was right. It is counted if the present stage gave the answer."""

    version: str
    """Empty: a rule has answered in its place, which says nothing about it."""
    right: bool
    revision: int = 0
    """Of the step of the rollout that the answer was given in."""
    arm: str = ""
    agent: str = ""
    """Who was answered."""
    place: tuple[int, ...] = ()
    """Where in its log it asked."""


class RolloutBegan(Event, name="stigmergy.RolloutBegan"):
    """A rollout began."""

    version: str
    stable: str
    rule: RolloutRule


class StageBegan(Event, name="stigmergy.StageBegan"):
    """A stage of a rollout began."""

    stage: Stage
    seconds: float


class StageOver(Event, name="stigmergy.StageOver"):
    """The time of a stage has passed; what is missing are answers."""


class CountsHeard(Event, name="stigmergy.CountsHeard"):
    """What a node has counted since a revision: sums, so that a repetition adds nothing."""

    source: str
    revision: int
    stable: VersionCounts
    candidate: VersionCounts


class VersionsCompared(Event, name="stigmergy.VersionsCompared"):
    """The rule has come to a verdict, on these counts."""

    stage: Stage
    stable: VersionCounts
    candidate: VersionCounts
    verdict: str
    reason: str


class Promoted(Event, name="stigmergy.Promoted"):
    """Everybody has this version from now on."""

    version: str
    reason: str


class RolledBack(Event, name="stigmergy.RolledBack"):
    """Everybody has the old version again."""

    version: str
    """That was taken back."""
    reason: str


class RolloutPaused(Event, name="stigmergy.RolloutPaused"):
    """The rule decides nothing for now, or again."""

    paused: bool
    by: str


class StageTime(Timer, name="stage"):
    """Goes off when the time of a stage is over, and when its patience is."""


class ModelRollout(Agent, kind=KIND):
    """The rollouts of one model, one after the other."""

    stable: str = ""
    candidate: str = ""
    before: str = ""
    stage: Stage = ""
    rollout: str = ""
    revision: int = 0
    paused: bool = False
    over: bool = False
    rule: RolloutRule = RolloutRule()
    reason: str = ""
    stables: Mapping[str, VersionCounts] = field(default_factory=dict)
    candidates: Mapping[str, VersionCounts] = field(default_factory=dict)
    """What nodes have counted in this stage, by source."""
    stable_judged: VersionCounts = VersionCounts()
    candidate_judged: VersionCounts = VersionCounts()
    judged_places: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """By agent: its answers that were judged in this stage, as far as they are remembered, in the log's order."""

    @property
    def is_open(self) -> bool:
        """Whether a rollout is under way."""
        return self.stage in ("shadow", "canary")

    @property
    def counts(self) -> tuple[VersionCounts, VersionCounts]:
        """What is known of both versions in this stage."""
        return (
            total(self.stables.values()).plus(self.stable_judged),
            total(self.candidates.values()).plus(self.candidate_judged),
        )

    def record(self, fleet: str) -> VersionRecord:
        """What nodes have to know."""
        return VersionRecord(
            fleet=fleet,
            model=self.id,
            revision=self.revision,
            stable=self.stable,
            candidate=self.candidate,
            stage=self.stage,
            rollout=self.rollout,
            canary=self.rule.canary,
            before=self.before,
            report_s=self.rule.report_s,
        )

    # ------------------------------------------------------------------ decisions

    @decide
    def begin(self, command: BeginRollout) -> Events:
        if self.is_open:
            reject(f"{self.candidate} is being rolled out; promote it or roll it back first")
        stable = self.stable or command.stable
        if not stable:
            reject(
                'it is not known which version runs now; name it: --from 1.2.0 on the command line, stable="1.2.0" in '
                "BeginRollout. If none does, this is the first: put it there with stigmergy model put BUNDLE, which "
                "needs no rollout"
            )
        if command.stable and command.stable != stable:
            reject(f"{stable} is stable, not {command.stable}")
        for version in (command.version, stable):
            try:
                version_key(version)
            except ModelRefused as error:
                reject(str(error))
        if command.version == stable:
            reject(f"{stable} runs already; where its bundle is missing, put it there with stigmergy model put BUNDLE")
        yield RolloutBegan(version=command.version, stable=stable, rule=command.rule)
        yield from self._next_stage("", command.rule, command.version, "the rule has no stages")

    @decide
    def promote(self, command: PromoteModel) -> Events:
        if not self.is_open:
            reject("nothing is being rolled out")
        yield Promoted(version=self.candidate, reason=f"by {command.by or 'a person'}")

    @decide
    def roll_back(self, command: RollBackModel) -> Events:
        reason = f"by {command.by or 'a person'}{': ' * bool(command.reason)}{command.reason}"
        if self.is_open:
            yield RolledBack(version=self.candidate, reason=reason)
        elif self.stage == "promoted" and self.before:
            yield RolledBack(version=self.stable, reason=reason)
        else:
            reject("nothing is being rolled out, and nothing was promoted that could be taken back")

    @decide
    def pause(self, command: PauseRollout) -> Events:
        if not self.is_open or self.paused:
            reject("nothing is being rolled out, or it is paused already")
        yield RolloutPaused(paused=True, by=command.by)

    @decide
    def resume(self, command: ResumeRollout) -> Events:
        if not self.paused:
            reject("it is not paused")
        yield RolloutPaused(paused=False, by=command.by)
        yield from self._judged(*self.counts)

    @decide
    def hear(self, event: CountsHeard) -> Events:
        source, is_known = event.source, event.source in self.stables
        if not self.is_open or event.revision != self.revision or len(source) > SOURCE_CHARS_MAX:
            return  # of another stage: it is over
        if not is_known and len(self.stables) >= SOURCES_COUNT_MAX:
            return
        stables = _with(self.stables, source, event.stable)
        candidates = _with(self.candidates, source, event.candidate)
        if is_known and (stables, candidates) == (self.stables, self.candidates):
            return
        yield event
        if not self.paused:
            stable = total(stables.values()).plus(self.stable_judged)
            yield from self._judged(stable, total(candidates.values()).plus(self.candidate_judged))

    @decide
    def judged(self, event: AnswerJudged) -> Events:
        if not self._counts_judged(event):
            return
        yield event
        if not self.paused:
            stable, candidate = self.counts
            one = VersionCounts(judged=1, wrong=int(not event.right))
            if event.version == self.candidate:
                candidate = candidate.plus(one)
            else:
                stable = stable.plus(one)
            yield from self._judged(stable, candidate)

    @decide
    def timed(self, _: Woken[StageTime]) -> Events:
        if self.is_open:
            if not self.over:
                yield StageOver()
            if not self.paused:
                yield from self._judged(*self.counts, is_over=True, is_late=self.over)

    def _counts_judged(self, event: AnswerJudged) -> bool:
        """Whether this answer is of the present stage, of the version of its arm, and not judged before."""
        version = {STABLE: self.stable, CANARY: self.candidate}.get(event.arm, "")
        if not self.is_open or event.revision != self.revision or not version or event.version != version:
            return False
        if not 0 < len(event.agent) <= AGENT_CHARS_MAX or len(event.place) != PLACE_COUNT:
            return False
        held = self.judged_places.get(event.agent)
        if held is None:
            return len(self.judged_places) < JUDGED_AGENTS_COUNT_MAX
        # What is older than all that is remembered may have been forgotten: it would count twice.
        return event.place not in held and (len(held) < JUDGED_EACH_COUNT_MAX or event.place > held[0])

    def _judged(
        self, stable: VersionCounts, candidate: VersionCounts, *, is_over: bool = False, is_late: bool = False
    ) -> Iterator[Event]:
        """What the rule makes of these counts."""
        over = is_over or self.over
        found = judge(self.rule, self.stage, stable, candidate, is_over=over, is_late=is_late)
        if found.then == "wait":
            return
        yield VersionsCompared(
            stage=self.stage, stable=stable, candidate=candidate, verdict=found.then, reason=found.reason
        )
        if found.then == "roll back":
            yield RolledBack(version=self.candidate, reason=found.reason)
        else:
            yield from self._next_stage(self.stage, self.rule, self.candidate, found.reason)

    @staticmethod
    def _next_stage(stage: Stage, rule: RolloutRule, version: str, reason: str) -> Iterator[Event]:
        if stage == "" and rule.shadow_s:
            yield StageBegan(stage="shadow", seconds=rule.shadow_s)
        elif stage in ("", "shadow") and rule.canary_s and rule.canary:
            yield StageBegan(stage=CANARY, seconds=rule.canary_s)
        else:
            yield Promoted(version=version, reason=reason)

    # ------------------------------------------------------------------ the state

    @evolve
    def began(self, event: RolloutBegan) -> None:
        self.revision += 1
        self.stable, self.candidate, self.rule = event.stable, event.version, event.rule
        self.rollout, self.paused, self.reason = f"{self.id}/{self.revision}", False, ""

    @evolve
    def stage_began(self, event: StageBegan) -> None:
        self.revision += 1
        self.stage, self.over = event.stage, False
        self.stables, self.candidates = {}, {}
        self.stable_judged = self.candidate_judged = VersionCounts()
        self.judged_places = {}

    @evolve
    def stage_over(self, _: StageOver) -> None:
        self.over = True

    @evolve
    def heard(self, event: CountsHeard) -> None:
        self.stables = _with(self.stables, event.source, event.stable)
        self.candidates = _with(self.candidates, event.source, event.candidate)

    @evolve
    def was_judged(self, event: AnswerJudged) -> None:
        if event.agent:  # logs of before have none
            places = sorted((*self.judged_places.get(event.agent, ()), event.place))[-JUDGED_EACH_COUNT_MAX:]
            self.judged_places = {**self.judged_places, event.agent: tuple(places)}
        one = VersionCounts(judged=1, wrong=int(not event.right))
        if event.version == self.candidate:
            self.candidate_judged = self.candidate_judged.plus(one)
        else:
            self.stable_judged = self.stable_judged.plus(one)

    @evolve
    def promoted(self, event: Promoted) -> None:
        self.revision += 1
        self.before, self.stable, self.candidate = self.stable, event.version, ""
        self.stage, self.reason, self.paused = "promoted", event.reason, False

    @evolve
    def rolled_back(self, event: RolledBack) -> None:
        self.revision += 1
        if self.stage == "promoted":
            self.stable, self.before = self.before, ""
        self.candidate, self.stage, self.reason, self.paused = "", "rolled back", event.reason, False

    @evolve
    def paused_or_not(self, event: RolloutPaused) -> None:
        self.paused = event.paused

    # ------------------------------------------------------------------ what goes out

    @react
    def wait(self, event: StageBegan) -> Effects:
        yield StageTime.wake(after_s=event.seconds)

    @react
    def wait_longer(self, _: StageOver) -> Effects:
        yield StageTime.wake(after_s=self.rule.patience_s)

    @react
    def done(self, _: Promoted | RolledBack) -> Effects:
        yield StageTime.cancel()


def _with(counts: Mapping[str, VersionCounts], source: str, told: VersionCounts) -> Mapping[str, VersionCounts]:
    return {**counts, source: counts.get(source, VersionCounts()).upto(told)}


def judged_answer(
    model: str, version: str, *, right: bool, revision: int, arm: str, agent: str, place: tuple[int, ...]
) -> Tell:
    """The effect that tells the rollout of a model whether an answer of this version was right."""
    told = AnswerJudged(version=version, right=right, revision=revision, arm=arm, agent=agent, place=place)
    return Tell(to=f"{KIND}/{model}", message=told)
