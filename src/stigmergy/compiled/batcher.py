"""Makes column batches from arrays: the producer's side of compiled agents. Needs numpy, but not numba.

    batcher = Batcher(await live.enroll(Drone, names), source="gateway-7", incarnation=started)
    batcher.add(Positioned, ["D-17", "D-18"], north_m=[1.0, 2.0], east_m=[0.0, 0.0], altitude_m=[50.0, 60.0])
    for batch in batcher.take():
        await live.deliver(batch)

Records of all types share one order. A batch is for one shard, and a source numbers the records of each shard from 1
without a gap: what is delivered twice is taken once. After a restart use a new, higher incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from stigmergy.agents.codec import SOURCE_CHARS_MAX
from stigmergy.agents.columns import Form, Layout
from stigmergy.agents.messages import Message, spec_of
from stigmergy.base.errors import ConfigError, Malformed, Overloaded
from stigmergy.compiled.arrays import AGENT, FORM, Coded, Values, bounds_of, coded_of, fill, record_dtype
from stigmergy.shard.batches import BATCH_BYTES_MAX, BATCH_FORMAT, HEADER_BYTES_MAX, BatchHeader, pack_batch

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Records that are added and not taken; with more `add` raises Overloaded."""
_START_BYTES = 16
"""Of a batch, beside header and records: its first bytes, and zeros up to the next multiple of 8."""


class PlaceLike(Protocol):
    """Where an agent is."""

    @property
    def shard(self) -> int:
        """Its shard."""
        ...

    @property
    def number(self) -> int:
        """Its number there."""
        ...


class ShardRosterLike(Protocol):
    """What a batch for one shard must name."""

    @property
    def layout(self) -> bytes:
        """The digest of the layout."""
        ...

    @property
    def generation(self) -> int:
        """How many enrolments there were."""
        ...

    @property
    def check(self) -> bytes:
        """Stands for all names."""
        ...

    @property
    def agents(self) -> int:
        """How many are enrolled."""
        ...


class RosterLike(Protocol):
    """A roster: what `live.enroll` returns."""

    @property
    def kind(self) -> str:
        """Of the agents."""
        ...

    @property
    def layout(self) -> Layout:
        """Of their records."""
        ...

    @property
    def shards(self) -> Sequence[ShardRosterLike]:
        """What is the case in each shard."""
        ...

    @property
    def places(self) -> Sequence[PlaceLike]:
        """Where the agents are."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Who they are, in the same order."""
        ...


class Batcher:
    """Collects records and gives them out as batches. Not for several threads at once."""

    def __init__(
        self,
        roster: RosterLike,
        *,
        source: str,
        incarnation: int = 0,
        epoch: int = 0,
        sequences: Mapping[int, int] | None = None,
    ) -> None:
        """`sequences` says per shard which number the next record has, for who goes on in the same incarnation."""
        if not 0 < len(source) <= SOURCE_CHARS_MAX:
            raise ConfigError(f"Batcher(source={source!r:.40}): give 1 to {SOURCE_CHARS_MAX} characters")
        self._layout = roster.layout
        self._source = source
        self._incarnation = incarnation
        self._epoch = epoch
        self._next = dict(sequences or {})
        self._waiting: dict[int, list[bytes]] = {}
        self._waiting_bytes = 0
        self.renew(roster)

    def renew(self, roster: RosterLike) -> None:
        """Goes on with a newer roster of the same kind: agents have been enrolled since. What was added stays."""
        if self._waiting and roster.layout != self._layout:
            raise ConfigError("a roster with another layout, while records wait; take them first")
        self._roster = roster
        self._layout = roster.layout
        self._shard_of = np.fromiter((place.shard for place in roster.places), np.int64, len(roster.places))
        self._number_of = np.fromiter((place.number for place in roster.places), np.int64, len(roster.places))
        self._place_of = {name: number for number, name in enumerate(roster.names)}
        self._forms = {form.tag: number for number, form in enumerate(self._layout.forms)}

    @property
    def kind(self) -> str:
        """Of the agents that it makes records for."""
        return self._roster.kind

    def form_of(self, message: type[Message] | str) -> Form:
        """How a message lies in its record. Raises Malformed for one that cannot be sent."""
        return self._layout.forms[self._form_of(message)]

    @property
    def waiting(self) -> int:
        """How many records are added and not taken."""
        return self._waiting_bytes // self._layout.record_bytes

    @property
    def sequences(self) -> dict[int, int]:
        """Per shard which number the next record has that is taken."""
        return dict(self._next)

    def add(self, message: type[Message] | str, agents: Any, /, **columns: Any) -> int:
        """Adds one record for each agent, in order; returns how many. Fields are arrays, or one value for all.

        Agents are names, or numbers: places in the roster, or, with a roster that has none, numbers in the one shard.
        `message` is a class, or a tag where the class is not at hand: then bounds are checked by the node alone.
        Raises Malformed, naming field and row, with nothing added.
        """
        return self.add_columns(message, agents, columns)

    def add_columns(self, message: type[Message] | str, agents: Any, columns: Mapping[str, Any]) -> int:
        """The same, for fields in a mapping."""
        number = self._form_of(message)
        form = self._layout.forms[number]
        shards, numbers = self._find(agents)
        width = self._layout.record_bytes
        if self._waiting_bytes + len(numbers) * width > WAITING_BYTES_MAX:
            raise Overloaded(f"{self.waiting + len(numbers)} records wait; take them, or add fewer at once")
        rows = np.zeros(len(numbers), record_dtype(self._layout, form))
        fill(rows, form, columns, bounds_of(None if isinstance(message, str) else message))
        rows[AGENT] = numbers
        rows[FORM] = number
        # As bytes: numpy copies the fields of chosen rows, and leaves what lies between them to chance.
        whole = rows.view(np.uint8).reshape(len(numbers), width)
        for shard in np.unique(shards).tolist():
            mine = whole if len(self._roster.shards) == 1 else whole[shards == shard]
            self._waiting.setdefault(shard, []).append(mine.tobytes())
        self._waiting_bytes += len(numbers) * width
        return len(numbers)

    def take(self, limit_bytes: int = BATCH_BYTES_MAX) -> list[bytes]:
        """All that was added, as batches of at most so many bytes, in order for each shard. They are numbered now: what
        is taken must be delivered, again and again until it is durable."""
        width = self._layout.record_bytes
        per_batch = (min(limit_bytes, BATCH_BYTES_MAX) - HEADER_BYTES_MAX - _START_BYTES) // width
        if per_batch < 1:
            raise ConfigError(
                f"take({limit_bytes}): no record fits; give {HEADER_BYTES_MAX + _START_BYTES + width} or more"
            )
        batches: list[bytes] = []
        for shard, pieces in sorted(self._waiting.items()):
            records = memoryview(b"".join(pieces))
            for start in range(0, len(records), per_batch * width):
                batches.append(self._batch(shard, records[start : start + per_batch * width]))
        self._waiting = {}
        self._waiting_bytes = 0
        return batches

    def _batch(self, shard: int, records: memoryview) -> bytes:
        here = self._roster.shards[shard]
        count = len(records) // self._layout.record_bytes
        sequence = self._next.get(shard, 1)
        self._next[shard] = sequence + count
        header = BatchHeader(
            format=BATCH_FORMAT,
            source=self._source,
            incarnation=self._incarnation,
            epoch=self._epoch,
            sequence=sequence,
            lost=0,
            shard=shard,
            kind=self._roster.kind,
            layout=here.layout,
            generation=here.generation,
            check=here.check,
            count=count,
        )
        return pack_batch(header, records)

    def _form_of(self, message: type[Message] | str) -> int:
        tag = message if isinstance(message, str) else spec_of(message).tag
        number = self._forms.get(tag, self._forms.get(f"{tag}@1"))
        if number is None or self._layout.forms[number].is_command:
            known = ", ".join(form.tag for form in self._layout.forms if not form.is_command)
            raise Malformed(f"{tag} is no event that {self._roster.kind} takes in batches; there are {known}")
        return number

    def _find(self, agents: Any) -> tuple[Values, Values]:
        """For every row the shard of its agent and the number there."""
        array = np.asarray(agents) if not isinstance(agents, Coded | str) else None
        if array is None or array.dtype.kind not in "iu":
            places = self._named(coded_of(agents) if array is None or not len(array) else coded_of(list(agents)))
        else:
            places = array.astype(np.int64).reshape(-1)
        if not len(self._shard_of):
            return self._numbered(places)
        wrong = (places < 0) | (places >= len(self._shard_of))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise Malformed(f"row {row}: agent {places[row]}, and the roster has {len(self._shard_of)}; enrol it first")
        return self._shard_of[places], self._number_of[places]

    def _named(self, coded: Coded) -> Values:
        found = np.fromiter((self._place_of.get(name, -1) for name in coded.values), np.int64, len(coded.values))
        places = found[coded.places]
        if (places < 0).any():
            row = int(np.flatnonzero(places < 0)[0])
            name = coded.values[coded.places[row]]
            raise Malformed(f"row {row}: {name!r:.80} is not in the roster of {self._roster.kind}; enrol it first")
        return places

    def _numbered(self, numbers: Values) -> tuple[Values, Values]:
        """With a roster that names nobody."""
        if len(self._roster.shards) != 1:
            raise Malformed("the roster does not say in which shard agents are; give one that live.enroll has returned")
        count = self._roster.shards[0].agents
        wrong = (numbers < 0) | (numbers >= count)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise Malformed(f"row {row}: agent {numbers[row]}, and {count} are enrolled; enrol it first")
        return np.zeros(len(numbers), np.int64), numbers
