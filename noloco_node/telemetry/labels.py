"""Label values are bounded: a stranger's words never become time series."""

from __future__ import annotations

from noloco_node.core.types import Outcome, Phase

OTHER = "other"
PHASES = tuple(str(phase) for phase in Phase)
OUTCOMES = tuple(str(outcome) for outcome in Outcome)
BOOTSTRAP_STATES = ("alone", "waiting", "joined")

SOLO_REASONS = (
    "paired",  # no reason: it closed paired
    "no_partner",  # nobody agreed to an exchange
    "partner_absent",  # agreed, but its BEGIN never came
    "partner_lost",
    "partner_solo",  # it closed solo and said so
    "deadline",
    "doubt",  # the next step was due before the answer came
    "mismatch",  # other step, run, codec, shapes or size
    "damaged",  # checksum, digest or count
    "refused",  # not finite, or a norm out of range
    "passed",
    "stopping",
)
REFUSALS = (
    "banned",
    "no_record",
    "no_lease",
    "expired",
    "outranked",
    "wrong_run",
    "wrong_peer",
    "wrong_seat",
    "forged",
    "malformed",
    "version",
    "busy",
    "too_large",
    "too_many",
)
STRIKES = ("damaged", "not_finite", "mismatch", "malformed", "forged", "flood", "protocol")
SOURCES = ("seed", "checkpoint", "peer")
SERVICES = ("hello", "status", "exchange", "pipeline", "state", "offer", "dht")
DIRECTIONS = ("sent", "received")

_WORDS = (
    # (word found in the free text of a reason, label), first match wins
    ("ban", "banned"),
    ("outrank", "outranked"),
    ("forged", "forged"),
    ("signature", "forged"),
    ("malformed", "malformed"),
    ("version", "version"),
    ("other run", "wrong_run"),
    ("wrong run", "wrong_run"),
    ("no record", "no_record"),
    ("no lease", "no_lease"),
    ("expired", "expired"),
    ("finite", "not_finite"),
    ("digest", "damaged"),
    ("checksum", "damaged"),
    ("crc", "damaged"),
    ("norm", "refused"),
    ("no partner", "no_partner"),
    ("lost", "partner_lost"),
    ("deadline", "deadline"),
    ("doubt", "doubt"),
    ("stop", "stopping"),
    ("shape", "mismatch"),
    ("codec", "mismatch"),
)


def bounded(text: str, known: tuple[str, ...]) -> str:
    """`text` as one of `known`, or "other". Exact names first, then telling words in a free sentence."""
    name = text.strip().lower().replace(" ", "_").replace("-", "_")
    if name in known:
        return name
    words = name.replace("_", " ")
    return next((label for word, label in _WORDS if word in words and label in known), OTHER)
