"""Models as agents see them: a class for each, whose fields are its outputs. Pure: nothing here runs a model.

    class GasAlarm(Model, name="gas-alarm", within_s=0.05):
        co: float
        no2: float

        @classmethod
        def fallback(cls, inputs: Inputs) -> GasAlarm:      # the rule that answers where the model cannot
            return cls(co=float(inputs[0] > 1500), no2=0.0)

    yield GasAlarm.ask(self.window, "co", "nox")            # in @react
    def judged(self, result: Inferred[GasAlarm]) -> Events  # in @decide: the answer, and where it comes from

What a model answers depends on the machine, its load and the bundle that is there. So an answer is a fact: it is kept,
and a replay reads it. Each names its question by a digest of the inputs.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

from blake3 import blake3
from msgspec import Struct, StructMeta, structs

from stigmergy.agents.codec import MESSAGE_BYTES_MAX
from stigmergy.agents.effects import MODELS, Tell, event_of
from stigmergy.agents.mentions import reactions_mention
from stigmergy.agents.messages import Effect, FollowedFact, is_number, resolve_hints, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.windows import Window
from stigmergy.base.errors import DefinitionError
from stigmergy.models.rollout_agent import judged_answer
from stigmergy.models.runtime import floats_of, pack_row, unpack_row

Inputs = Sequence[float]
"""What a model is asked: numbers as it gets them, rounded to float32; of a window row by row, the oldest first."""

INPUTS_COUNT_MAX = MESSAGE_BYTES_MAX // 4 - 256
"""An ask is a message: so many numbers have room in one."""
WITHIN_S = 0.05
WITHIN_S_MAX = 60.0
INPUTS_DIGEST_BYTES = 16
HALF, ALIKE_SHARE = 0.5, 0.1
"""What answers of two versions are told apart by."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class ModelSpec(Struct, frozen=True):
    """What the class statement of a model said."""

    name: str
    within_s: float
    explain: bool
    outputs: tuple[str, ...]
    has_fallback: bool


@dataclass_transform(frozen_default=True)
class ModelMeta(StructMeta):
    """Makes each class of a model a frozen struct of its outputs, and checks it while it is defined."""

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        name: str = "",
        within_s: float = WITHIN_S,
        explain: bool = False,
        **config: Any,
    ) -> Any:
        cls: Any = super().__new__(mcls, class_name, bases, namespace, frozen=True, gc=False, **config)
        if any(isinstance(base, ModelMeta) for base in bases):
            cls.__model__ = _spec(cls, name or _WORDS.sub("-", class_name).lower(), within_s, explain)
        return cls


def _spec(cls: Any, name: object, within_s: object, explain: bool) -> ModelSpec:
    where = cls.__qualname__
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise DefinitionError(f"{where}: name={name!r}; a model is called by small letters, digits and dashes")
    if not is_number(within_s) or not 0 < within_s <= WITHIN_S_MAX:  # type: ignore[operator]
        raise DefinitionError(f"{where}: within_s={within_s!r}; give more than 0 and at most {WITHIN_S_MAX:g} seconds")
    hints = resolve_hints(cls, where)
    if not cls.__struct_fields__:
        raise DefinitionError(f"{where}: a model has outputs; name each of them, as in co: float")
    for field in cls.__struct_fields__:
        if hints[field] is not float:
            raise DefinitionError(f"{where}.{field}: an output of a model is a float; derive other types from it")
    has_fallback = cls.fallback.__func__ is not vars(Model)["fallback"].__func__
    return ModelSpec(name, float(within_s), bool(explain), cls.__struct_fields__, has_fallback)  # type: ignore[arg-type]


class Model(Struct, metaclass=ModelMeta):
    """The answer of a model. Subclass it: the fields are the outputs that its bundle has under these names.

    Without an answer after `within_s` seconds the fallback answers. With `explain` the inputs that mattered most come
    with the answer, as far as time allows.
    """

    __model__: ClassVar[ModelSpec]

    @classmethod
    def ask(cls, inputs: Window[Any] | Iterable[float], *fields: str) -> ModelAsked:
        """The effect that asks the model: numbers, or these fields of a window's events, row by row, the oldest first.
        The answer is an `Inferred[…]` of this class."""
        row = _values(cls.__name__, inputs, fields)
        if not 1 <= len(row) <= INPUTS_COUNT_MAX:
            _check_numbers(cls.__name__, row)
            raise TypeError(f"{cls.__name__}.ask with {len(row)} numbers; give 1 to {INPUTS_COUNT_MAX}")
        try:
            packed = floats_of(len(row)).pack(*row)
        except (struct.error, OverflowError):  # something is no number, or more than float32 holds
            _check_numbers(cls.__name__, row)
            packed = pack_row([float(number) for number in row])
        return ModelAsked(model=cls.__model__.name, inputs=packed)

    @classmethod
    def fallback(cls, inputs: Inputs) -> Any:
        """The rule that answers where the model cannot: missing, too slow, broken. Pure: the same inputs, the same
        answer. A model without one needs its bundle at the start, and where it cannot answer the agent gets
        `WorkFailed`."""
        raise NotImplementedError

    @classmethod
    def confidence_of(cls, answer: Any) -> float:
        """How sure an answer is, from 0 to 1: its highest output, where outputs are probabilities. Define it anew for
        others."""
        highest = max(structs.astuple(answer))  # its fields are the outputs
        return float(highest) if 0 <= highest <= 1 else 0.0

    @classmethod
    def agrees(cls, answer: Any, other: Any) -> bool:
        """Whether two versions say the same: each output on the same side of a half where both are probabilities, else
        within a tenth. A rollout compares by it. Define it anew for others."""
        return all(_alike(getattr(answer, name), getattr(other, name)) for name in cls.__model__.outputs)

    @classmethod
    def judged(cls, source: ModelSource, *, right: bool) -> Tell:
        """The effect that says that an answer was right, or a false positive: the rollout of its version counts it,
        once for each answer, if its present stage gave it and the model itself has answered."""
        return judged_answer(
            cls.__model__.name,
            "" if source.fallback else source.version,
            right=right,
            revision=source.revision,
            arm=source.arm,
            agent=source.asked_by,
            place=source.asked_at,
        )


def _alike(one: float, other: float) -> bool:
    if 0 <= one <= 1 and 0 <= other <= 1:
        return (one >= HALF) == (other >= HALF)
    return math.isclose(one, other, rel_tol=ALIKE_SHARE)


def _values(name: str, inputs: Any, fields: tuple[str, ...]) -> Sequence[Any]:
    if isinstance(inputs, Window):
        if not fields:
            raise TypeError(f"{name}.ask(window): name the fields that the model reads: {name}.ask(window, 'co')")
        return [getattr(event, field) for event in inputs.values for field in fields]
    if fields:
        raise TypeError(f"{name}.ask: fields are for a window; give numbers alone")
    return tuple(inputs)


def _check_numbers(name: str, row: Sequence[Any]) -> None:
    for number in row:
        if isinstance(number, str | bytes) or not hasattr(number, "__float__"):
            raise TypeError(f"{name}.ask with {number!r:.50}, which is no number")


class ModelAsked(Effect, name="stigmergy.ModelAsked"):
    """Asks a model; `GasAlarm.ask(…)` makes one."""

    __sink__: ClassVar[str] = MODELS

    model: str
    inputs: bytes
    """Little-endian float32."""


class ModelSource(Struct, frozen=True, omit_defaults=True):
    """Where an answer comes from."""

    model: str
    version: str = ""
    """Of the bundle; empty where the rule has answered and no bundle was there."""
    digest: bytes = b""
    """BLAKE3 of the bundle."""
    inputs: bytes = b""
    """BLAKE3 of the inputs, 16 bytes: tells which question this answers."""
    latency_s: float = 0.0
    """From the question to the answer."""
    fallback: str = ""
    """Why the rule has answered, as `late` or `failed: …`; empty: the model has."""
    arm: str = ""
    """In a rollout: "stable" or "canary"."""
    policy: str = ""
    """The policy that has let the bundle in: name, version, start of its digest; empty where nobody was asked."""
    shadow_version: str = ""
    """In a rollout: the version in the shadow. What it answers is counted, and not kept: it may come later."""
    shadow_agrees: bool | None = None
    """In older logs, where the shadow was the quicker one. It is written no more: of the slow ones it says nothing."""
    explanation: tuple[tuple[str, float], ...] = ()
    """The inputs that mattered most, each with how much it moved the first output; empty unless asked for."""
    revision: int = 0
    """In a rollout: that of the step that it was in when this was asked."""
    asked_by: str = ""
    """In a rollout: the agent that asked."""
    asked_at: tuple[int, ...] = ()
    """In a rollout: where in its log; each answer has another place."""

    @property
    def reason(self) -> str:
        """Why the rule has answered, as one of FALLBACKS; empty: the model has."""
        return self.fallback.partition(":")[0]


MISSING, REFUSED, INPUTS, FULL, LATE = "missing", "refused", "inputs", "queue-full", "late"
FAILED, NOT_FINITE, OUT_OF_SHAPE, HUNG, RESTING = "failed", "not-finite", "out-of-shape", "hung", "resting"
SIMULATED = "simulated"
FALLBACKS: Mapping[str, str] = {
    MISSING: "there is no bundle of the model, or this node has no place for models",
    REFUSED: "its bundle cannot be used: damaged, unsigned, of another key, too large",
    INPUTS: "NaN, infinity or another count of numbers than the model takes",
    FULL: "too many questions wait; the oldest is answered",
    LATE: "no answer in time",
    FAILED: "the runtime gave up",
    NOT_FINITE: "the model answered NaN or infinity",
    OUT_OF_SHAPE: "the model answered another count of numbers than it says",
    HUNG: "the thread of the models hangs, and may not be replaced any more",
    RESTING: "the model failed several times in a row, and is asked again after a pause",
    SIMULATED: "a simulation without a function for the model",
}
"""Why a rule answers instead of a model."""


if TYPE_CHECKING:
    ModelT = TypeVar("ModelT", bound=Model)

    class _OfModel(Generic[ModelT]):
        """What type checkers see."""

else:
    ModelT = TypeVar("ModelT", bound=Model)

    class _OfModel:
        """`Inferred[GasAlarm]` is a class of events of its own, made when it is first named."""

        __slots__ = ()

        def __class_getitem__(cls, model: Any) -> type[Any]:
            return cls if isinstance(model, TypeVar) else inferred_class(model)


class Inferred(_OfModel[ModelT], FollowedFact, name="stigmergy.Inferred"):
    """What a model has answered, or its rule. Annotate a handler with `Inferred[GasAlarm]`."""

    answer: ModelT
    confidence: float
    source: ModelSource


_models: dict[type[Any], type[Model]] = {}
"""The model of each class of answers."""
_inferred: dict[type[Model], type[Any]] = {}
"""The class of answers of each model."""


def inferred_class(model: Any) -> type[Any]:
    """The class that `Inferred[model]` stands for."""
    if not (isinstance(model, type) and issubclass(model, Model)) or model is Model:
        shown = getattr(model, "__name__", repr(model))
        raise DefinitionError(f"Inferred[{shown}]: name the class of one model: class GasAlarm(Model), …")
    if (known := _inferred.get(model)) is not None:
        return known
    types = {"answer": model, "confidence": float, "source": ModelSource}
    made = event_of(Inferred, model, f"{spec_of(Inferred).name}.{model.__model__.name}", 1, types)
    _models[made], _inferred[model] = model, made
    return made


def inferred(
    answer: ModelT, *, confidence: float | None = None, source: ModelSource | None = None, fallback: str = ""
) -> Inferred[ModelT]:
    """An answer as an agent gets it: for tests, `.when(inferred(GasAlarm(co=0.9, no2=0.1)))`."""
    cls = type(answer)
    given = source or ModelSource(cls.__model__.name, fallback=fallback)
    sure = cls.confidence_of(answer) if confidence is None else confidence
    made: Inferred[ModelT] = inferred_class(cls)(answer=answer, confidence=sure, source=given)
    return made


def answered(cls: type[Model], outputs: Sequence[float], source: ModelSource) -> Any:
    """The event for these outputs. Raises ValueError where one is not finite, and what the class's own code raises."""
    if not all(map(math.isfinite, outputs)):
        raise ValueError("an output is NaN or infinite")
    return answer_of(cls, outputs, source)


def answer_of(cls: type[Model], outputs: Sequence[float], source: ModelSource) -> Any:
    """The same for outputs that are known to be finite."""
    answer = cls(*map(float, outputs))
    return inferred_class(cls)(answer, cls.confidence_of(answer), source)


def by_rule(cls: type[Model], row: bytes, source: ModelSource) -> Any:
    """The event with what the rule of a model answers. Raises what the rule raises, and TypeError for no answer."""
    answer = cls.fallback(unpack_row(row))
    if not isinstance(answer, cls):
        raise TypeError(f"{cls.__name__}.fallback returned {type(answer).__name__}, not {cls.__name__}")
    return answered(cls, [getattr(answer, name) for name in cls.__model__.outputs], source)


def digest_of_inputs(row: bytes) -> bytes:
    """What tells the inputs of a question from others."""
    return blake3(row).digest(length=INPUTS_DIGEST_BYTES)


def models_of(plans: Iterable[AgentPlan]) -> dict[str, type[Model]]:
    """The models of a fleet by name: those whose answers its agents have a handler for. Raises DefinitionError for an
    agent that asks a model and has none, and for two models of one name."""
    found: dict[str, type[Model]] = {}
    for plan in plans:
        heard = [_models[message] for message in plan.plans if message in _models]
        for cls in (*heard, *_asked(plan)):
            name = cls.__model__.name
            if cls not in heard:
                raise DefinitionError(
                    f"{plan.cls.__qualname__} asks {cls.__name__} and has no handler for its answer; write one that "
                    f"takes Inferred[{cls.__name__}]"
                )
            if found.setdefault(name, cls) is not cls:
                both = f"{cls.__module__}.{cls.__qualname__} and {found[name].__module__}.{found[name].__qualname__}"
                raise DefinitionError(f"two models are called {name!r}, {both}; give one of them name=…")
    return found


def _asked(plan: AgentPlan) -> list[type[Model]]:
    """The models that the reactions of an agent class ask, as far as their code shows it."""
    return [
        value
        for function, _, value in reactions_mention(plan.cls)
        if isinstance(value, type)
        and issubclass(value, Model)
        and value is not Model
        and Model.ask.__name__ in function.__code__.co_names
    ]
