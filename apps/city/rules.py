"""What is over a limit, suspicious, severe, and who is to be told when: the numbers that agents share. Pure."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime

SUSPICIOUS, LIKELY, CALM = 0.85, 0.5, 0.3
"""A probability over the first is a suspicion, as the article has it; a neighbour over the second confirms it; under
the third it is over, and a neighbour contradicts it."""
REMIND = 5
"""A sensor that stays suspicious says so again after so many readings: its district may have lost its disk."""
CALM_READINGS = 2
CONFIRM_S = 5.0
"""So long neighbours that know nothing new, or are silent, have to answer: about a reading. Then others decide."""
FRESH_S = 60.0
"""What a neighbour has seen is worth nothing when it is older."""
CONTRADICT_COUNT = 2
"""So many neighbours that see nothing outvote one that does."""
SEVERITY_MAX = 4
ESCALATE_S = {1: 60.0, 2: 40.0, 3: 25.0}
"""An incident of this severity that nobody has acknowledged becomes one more severe after so long."""
CLEAR_S = 6.0
"""All is clear when no sensor has been suspicious for so long; from severity 3, also when somebody has acknowledged."""
BACKUP_S, BACKUPS = 20.0, 2
"""The next gateways in the ring act for one that does not, each so much later."""
MAIL_SEVERITY = 2
"""From here on incidents are mailed, too."""
LIMITS = {"noise": 95.0, "flow": 0.15, "crowd": 4.0}
"""dB(A); the speed of traffic as a share of free flow, under which there is a jam; people on a square metre."""
READINGS = 3
"""So many in a row have to be over a limit of `LIMITS`."""
FAMILY = {"co": "gas", "no2": "gas"}
"""One plume makes sensors suspicious of either gas: it is one incident, called by what the first one says."""
KINDS = {"co": "CO_leak", "no2": "NO2_leak", "noise": "noise", "flow": "jam", "crowd": "crowd"}
WHATS = {kind: what for what, kind in KINDS.items()}


def severity_of(confirming: int) -> int:
    """By how many sensors beside the first one see it: 1, if nobody could be asked."""
    return 1 if confirming == 0 else 2 if confirming < 3 else 3


def incident_id(sensor: str, what: str, opened_s: float) -> str:
    """An id in the form of a UUID of version 4; the same for the same suspicion at every repetition."""
    digest = hashlib.blake2b(f"{sensor} {what} {opened_s!r}".encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


def timestamp_of(seconds: float) -> str:
    """As the article writes times: 2026-03-20T07:00:40.042Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def same(one: str, two: str) -> bool:
    """Whether two sensors may see one thing."""
    return FAMILY.get(one, one) == FAMILY.get(two, two)
