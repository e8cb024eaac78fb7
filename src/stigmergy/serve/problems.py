"""Errors as HTTP answers: one body for all, RFC 9457 `application/problem+json`."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.base import errors
from stigmergy.base.errors import StigmergyError
from stigmergy.serve.access import DeniedRequest

RETRY_AFTER_S = 1


class FieldProblem(Struct, frozen=True):
    """What is wrong with one field: where it is in the body, as a JSON pointer, and why."""

    pointer: str
    detail: str


class HttpProblem(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of every answer that is an error. `type` is for programs, `detail` for people."""

    type: str
    title: str
    status: int
    detail: str
    command_id: str | None = None
    """Of a command: with the same id as Idempotency-Key it may be sent again, and is done once."""
    errors: list[FieldProblem] = []
    retry_after_s: int | None = None


class WrongFields(errors.Malformed):
    """Fields of a body that do not fit their types."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        super().__init__("; ".join(f"{one.pointer}: {one.detail}" for one in problems))
        self.problems = problems


class RefusedCommand(StigmergyError):
    """An agent has refused a command."""


STATUSES: dict[type[StigmergyError], tuple[int, str, str]] = {
    RefusedCommand: (409, "refused", "The agent has refused the command"),
    errors.Malformed: (422, "wrong-fields", "The body does not fit"),
    errors.UnknownTag: (404, "unknown-message", "The agent kind has no such command or event"),
    errors.UnknownKind: (404, "unknown-agent", "The fleet has no such agent"),
    errors.Unreachable: (503, "unreachable", "The agent's node cannot be reached now"),
    errors.NotAssigned: (421, "runs-elsewhere", "The agent does not run here"),
    errors.NotOwned: (421, "runs-elsewhere", "The agent does not run here"),
    errors.TooLarge: (413, "too-large", "Too large"),
    errors.Overloaded: (429, "overloaded", "The node takes no more at present"),
    errors.NotRunning: (503, "not-running", "The node does not answer"),
    errors.ReadOnlyLog: (409, "read-only", "A log is played back here"),
    errors.LogCut: (410, "log-cut", "These events were dropped by retention"),
    errors.JournalFull: (503, "journal-full", "The journal has no room"),
    errors.NoAnswer: (504, "in-doubt", "Whether it was done is not known"),
    errors.JournalUnknown: (504, "in-doubt", "Whether it was done is not known"),
    errors.LinkDown: (504, "in-doubt", "Whether it was done is not known"),
    errors.ViewBehind: (503, "view-behind", "The view has not read so far yet"),
    errors.ViewFailed: (503, "view-failed", "The view has stopped"),
    errors.ConfigError: (400, "bad-request", "The request is wrong"),
    errors.BlobMissing: (404, "no-such-blob", "The store has no such blob"),
    errors.StoreFull: (507, "store-full", "The store of blobs is full"),
    errors.StoreUnavailable: (503, "store-unavailable", "The store of blobs does not answer"),
    errors.StoreUnknown: (503, "store-unavailable", "The store of blobs does not answer"),
    errors.StoreError: (502, "store-failed", "The store of blobs failed"),
}
"""By the first class of an error that is listed: the status, the type and the title."""
TITLES = {
    400: ("bad-request", "The request is wrong"),
    401: ("no-token", "A token is needed"),
    403: ("forbidden", "Not allowed"),
    404: ("not-found", "There is nothing here"),
    405: ("wrong-method", "Another method is needed"),
    408: ("too-slow", "The request took too long"),
    409: ("conflict", "Not possible as it is now"),
    413: ("too-large", "Too large"),
    415: ("wrong-media-type", "The body must be JSON"),
    416: ("no-such-range", "The blob has no such bytes"),
    421: ("wrong-host", "Not a name of this server"),
    422: ("wrong-fields", "The body does not fit"),
    429: ("too-often", "Too many requests"),
    431: ("too-large", "Too large"),
    503: ("too-many-connections", "Too many connections"),
}


def problem_of(error: Exception, command_id: str | None = None) -> HttpProblem:
    """The body for an error. What is no error of ours is a bug, and says no more than that."""
    if isinstance(error, DeniedRequest):
        kind, title = TITLES[error.status]
        status, retry_after_s = error.status, error.retry_after_s or None
    else:
        found = next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), None)
        status, kind, title = found or (500, "bug", "A bug of this server")
        retry_after_s = RETRY_AFTER_S if status in (429, 503) else None
    is_ours = isinstance(error, StigmergyError)
    return HttpProblem(
        type=f"urn:stigmergy:{kind}",
        title=title,
        status=status,
        detail=str(error) if is_ours else "see the log of the server",
        command_id=command_id,
        errors=error.problems if isinstance(error, WrongFields) else [],
        retry_after_s=retry_after_s,
    )
