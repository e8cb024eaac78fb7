"""Copies of agents, to go back to when an input fails: made for each input, so as cheap as they can be. Pure."""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Mapping
from typing import Any, cast

from stigmergy.agents.codec import encode_state, state_decoder
from stigmergy.agents.messages import first_mutable, is_flat, resolve_hints
from stigmergy.agents.shared import SharedField


def copier(cls: type[Any], shared: Mapping[str, SharedField]) -> Callable[[Any], Any]:
    """Makes the copies of one class: of a field that can be changed in place a copy, of all others the very same."""
    hints = resolve_hints(cls, cls.__qualname__)
    mutable = [name for name, hint in hints.items() if first_mutable(hint) is not None]
    shallow = cast("Any", cls).__copy__
    if not mutable:
        return shallow  # type: ignore[no-any-return]
    if not all(is_flat(hints[name]) for name in mutable):
        return _deep_copier(cls, shared)

    def copy(agent: Any) -> Any:
        copied = shallow(agent)
        for name in mutable:
            setattr(copied, name, copying.copy(getattr(agent, name)))
        return copied

    return copy


def _deep_copier(cls: type[Any], shared: Mapping[str, SharedField]) -> Callable[[Any], Any]:
    decode = state_decoder(cls).decode

    def copy(agent: Any) -> Any:
        bare = without_shared(shared, agent)
        try:
            copied = decode(encode_state(bare))
        except Exception:
            # A handler has put something into the state that has no bytes. A snapshot says so; a step must go on.
            copied = copying.deepcopy(bare)
        # What is shared never changes in place, and may be large: the copy has the very same.
        for name in shared:
            setattr(copied, name, getattr(agent, name))
        return copied

    return copy


def without_shared(shared: Mapping[str, SharedField], agent: Any) -> Any:
    """A shallow copy whose shared fields are empty, for who would have to write them all; if none, the agent itself."""
    if not shared:
        return agent
    bare = agent.__copy__()
    for name, field in shared.items():
        setattr(bare, name, field.initial)
    return bare
