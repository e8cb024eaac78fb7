"""What NATS refuses or leaves open, in the errors of the store port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stigmergy.adapters.nats.errors import STREAM_NOT_FOUND, JetStreamRefused, Unanswered
from stigmergy.core.errors import LinkDown, StoreConflict, StoreForeign, StoreUnavailable, StoreUnknown, TooLarge

MESSAGE_TOO_LARGE = 10054


@contextmanager
def asking(what: str, *, writes: bool) -> Iterator[None]:
    """Around a call to the server. `what` names the bucket and key; `writes` whether it may change something there."""
    try:
        yield
    except Unanswered as error:
        if writes:
            raise StoreUnknown(f"{what}: {error}; read it, or repeat it with compare-and-set") from None
        raise StoreUnavailable(f"{what}: {error}; nothing was read, try again") from None
    except LinkDown as error:
        raise StoreUnavailable(f"{what}: {error}") from None
    except JetStreamRefused as refused:
        raise _in_our_words(what, refused) from None


def _in_our_words(what: str, refused: JetStreamRefused) -> Exception:
    if refused.is_fence:
        return StoreConflict(f"{what}: another one wrote it ({refused.description}); read it and decide again")
    if refused.is_full:
        return StoreUnavailable(
            f"{what}: the store has no room ({refused.description}); nothing was written: delete what is not needed, "
            "or raise the limits of the bucket or the server"
        )
    if refused.code == STREAM_NOT_FOUND:
        return StoreForeign(f"{what}: the bucket is gone, somebody has deleted it; open it again to make a new one")
    if refused.code == MESSAGE_TOO_LARGE:
        return TooLarge(f"{what}: more than the bucket's own limit ({refused.description}); raise its max_msg_size")
    return StoreUnavailable(f"{what}: refused ({refused}); nothing was written, try again")
