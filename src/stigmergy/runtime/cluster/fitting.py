"""Whether a worker fits to those that are there: the same shards, agents and versions of them, clocks that agree."""

from __future__ import annotations

from stigmergy.core.errors import ConfigError
from stigmergy.ports.store import NS
from stigmergy.runtime.cluster.records import FleetShape, Member

CLOCK_SKEW_S_MAX = 5.0
"""Wall clocks of two workers may differ so much."""


def check_shape(known: FleetShape, ours: FleetShape) -> None:
    """Refuses to work for a fleet that looks for its agents elsewhere."""
    if known.fleet != ours.fleet:
        raise ConfigError(f"this is the bucket of the fleet {known.fleet!r}, not of {ours.fleet!r}; name the right one")
    if known.shards != ours.shards:
        raise ConfigError(
            f"the fleet {ours.fleet!r} runs with {known.shards} shards, and this module declares {ours.shards}; the "
            f"number is for good: declare Fleet(…, shards={known.shards})"
        )
    if known.shard_by != ours.shard_by:
        names = [f"shard_by={name}" if name else "no shard_by" for name in (known.shard_by, ours.shard_by)]
        raise ConfigError(
            f"the fleet {ours.fleet!r} runs with {names[0]}, and this module declares {names[1]}; where agents live is "
            "for good: declare it as it was"
        )


def check_folds(known: Member, ours: Member) -> None:
    """Refuses agents whose states are of another version than those of a worker that runs, and to be without some of
    them: their commands would be refused wherever their shard is ours."""
    theirs = {fold.kind: fold for fold in known.kinds}
    for fold in ours.kinds:
        other = theirs.get(fold.kind, fold)
        if other != fold:
            versions = f"version {other.version}" if other.version != fold.version else "other fields"
            raise ConfigError(
                f"worker {known.id} on {known.host} runs {fold.kind} with {versions}; run the same code in all "
                "workers, or replace them one by one with --upgrade"
            )
    ours_too = [fold.kind for fold in ours.kinds]
    if missing := [fold.kind for fold in known.kinds if fold.kind not in ours_too]:
        raise ConfigError(
            f"worker {known.id} on {known.host} runs {', '.join(missing)}, which this module does not declare; run the "
            "same code in all workers, or replace them one by one with --upgrade"
        )


def check_agents(known: Member, ours: Member) -> None:
    """Refuses to run other agents of the fleet than a worker that is there: whom a shard runs would change with every
    move of it. Earlier versions do not say whom they run."""
    if known.agents_digest and known.agents_digest != ours.agents_digest:
        alike = ", but others among those" if known.agents == ours.agents else ""
        raise ConfigError(
            f"worker {known.id} on {known.host} runs {known.agents}, and this one is to run {ours.agents}{alike}; give "
            "all workers of the fleet the same agents under [fleet] in stigmergy.toml, or replace them one by one with "
            "--upgrade"
        )


def is_old(known: Member, wall_ns: int, age_s_max: float) -> bool:
    """Whether somebody has written this longer ago than it may, or has a clock that is behind ours."""
    return known.wall_ns - wall_ns < -(CLOCK_SKEW_S_MAX + age_s_max) * NS


def check_clocks(known: Member, wall_ns: int, age_s_max: float) -> None:
    """Refuses to work beside somebody whose clock is far from ours. What it wrote may be as old as it says."""
    ahead_s = (known.wall_ns - wall_ns) / NS
    if is_old(known, wall_ns, age_s_max) or ahead_s > CLOCK_SKEW_S_MAX:
        raise ConfigError(
            f"the clock of this machine is {abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} that of "
            f"worker {known.id} on {known.host}; timers would ring at wrong times: set the clocks (NTP), "
            f"{CLOCK_SKEW_S_MAX:g} s are allowed"
        )
